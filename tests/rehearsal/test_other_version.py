"""One rank runs another version of something: the audit names what, and the ranks."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import JOBS, rehearse


def told(folder: Path, what: str, end: str) -> tuple[list[str], str]:
    """Play a job of three ranks, of which rank 1 has something else; return the rules of the audit, and its text."""
    for name in ("other_version.py", "common.py"):
        shutil.copy(JOBS / name, folder)
    rehearse(folder / "other_version.py", what, end, ranks=3, devices=3, log=folder / "log")
    text, findings = audit(folder / "log")
    return [row[0] for row in json.loads(findings)], text


def test_a_rank_with_another_text_of_the_program_is_named(tmp_path: Path) -> None:
    """As where one host has an old image: the file has the same name there."""
    rules, text = told(tmp_path, "text", "well")
    assert rules == ["versions-differ"], text
    name = re.escape(str(tmp_path / "other_version.py"))
    assert re.search(rf"the text of {name} is \w{{8}} on ranks 0, 2; \w{{8}} on rank 1", text), text


@pytest.mark.parametrize(
    ("what", "differs"),
    [
        ("driver", "driver is 570.1.2 on ranks 0, 2; 580.65.6 on rank 1"),
        ("python", "python is " + ".".join(map(str, sys.version_info[:3])) + " on ranks 0, 2; 3.10.1 on rank 1"),
    ],
)
def test_another_driver_or_python_is_a_hint_where_something_went_wrong(what: str, differs: str, tmp_path: Path) -> None:
    """NCCL and PyTorch allow it, so it is no finding in a job that is well, and never the first one."""
    rules, text = told(tmp_path, what, "badly")
    assert "surroundings-differ" in rules, text
    assert differs in text
    assert "(ended-by-exception)" in text.splitlines()[-2], text


def test_a_job_that_is_well_may_have_two_drivers(tmp_path: Path) -> None:
    """Nothing is said."""
    rules, text = told(tmp_path, "driver", "well")
    assert rules == [], text

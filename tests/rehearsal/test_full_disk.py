"""The disk fills up while a job runs, and ends it: the audit names the disk."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from audit.goldens import audit
from support import small_disk
from support.rehearsal import rehearse_until

JOB = "fills_the_disk.py"
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the rings of two ranks, and little more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk.mounted(folder, b"20m"):
        yield folder


def first(log: Path) -> tuple[str, str]:
    """Return the rule of the audit's first finding, and the last line."""
    text, findings = audit(log)
    rows = json.loads(findings)
    return next((row for row in rows if row[1] == "error"), rows[0])[0], text.splitlines()[-2]


def test_a_rank_that_ends_because_a_disk_is_full_is_named_with_its_error(disk: Path, tmp_path: Path) -> None:
    """Its own error, if its log is on another disk."""
    log = tmp_path / "log"
    rehearse_until(30, JOB, str(disk), ranks=2, log=log)
    rule, said = first(log)
    assert (rule, f"rank 1 ended by OSError: [Errno 28] {FULL}" in said) == ("ended-by-exception", True), said


def test_a_rank_whose_log_is_on_the_full_disk_too_is_named_with_both(disk: Path) -> None:
    """The text of the error found no room in the log, and stands in the ring."""
    rehearse_until(30, JOB, str(disk), ranks=2, log=disk)
    rule, said = first(disk)
    told = f"rank 1 ended by OSError: [Errno 28] {FULL}; its log had stopped before that: {FULL}"
    assert (rule, told in said) == ("ended-by-exception", True), said

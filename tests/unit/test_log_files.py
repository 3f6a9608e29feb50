"""The file of a log is made by its process: nobody's file is written over, followed or shared."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tracehook.log import file_name


def test_processes_of_one_name_have_a_file_each(tmp_path: Path) -> None:
    """Containers may give equal host names and numbers: whoever comes second takes the next name."""
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(file_name.make_log, [tmp_path] * 32, [None] * 32))
    assert len({path for path, _ in made}) == len(list(tmp_path.iterdir())) == 32
    for path, descriptor in made:
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        os.close(descriptor)


@pytest.mark.parametrize("suffix", [".jsonl", ".ring", ".jsonl.gz"])
def test_a_name_of_which_there_is_a_file_is_taken(tmp_path: Path, suffix: str) -> None:
    """A log that was packed, or a ring whose log is gone, keeps its name."""
    (tmp_path / f"{file_name.file_stem(None)}{suffix}").write_text("of another")
    path, descriptor = file_name.make_log(tmp_path, None)
    os.close(descriptor)
    assert path.name == f"{file_name.file_stem(None)}.2.jsonl"
    assert (tmp_path / f"{file_name.file_stem(None)}{suffix}").read_text() == "of another"


def test_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that appears in the log's place, after the look into the directory, leads nowhere."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / f"{file_name.file_stem(None)}.jsonl").symlink_to(victim)
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    path, descriptor = file_name.make_log(logs, None)
    os.write(descriptor, b"line\n")
    os.close(descriptor)
    assert (victim.read_text(), path.read_text()) == ("mine", "line\n")
    assert stat.S_ISREG(path.lstat().st_mode)

"""Which processes of a rehearsal made communicators without the hook, by the marks and the logs that they left."""

import json
from pathlib import Path

import pytest

from tracehook.rehearsal import unhooked


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the scratch of a rehearsal and its logs, empty."""
    found = tmp_path / "scratch", tmp_path / "logs"
    for folder in found:
        folder.mkdir()
    return found


def mark(scratch: Path, pid: int, logs: Path) -> None:
    """Leave what the emulated NCCL leaves."""
    (scratch / f"maker.{pid}").write_text(str(logs))


def write_log(logs: Path, pid: int, *reasons: str) -> None:
    """Write a log with these reasons in it."""
    events = [{"event": "trace.begin"}, *({"event": "hook.unsupported", "reason": reason} for reason in reasons)]
    (logs / f"job.rank0.host.{pid}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_a_maker_without_a_log_is_named(folders: tuple[Path, Path]) -> None:
    """Also beside one that has a log. Nothing is said of who makes no communicators, or logs somewhere else."""
    scratch, logs = folders
    assert unhooked.told(scratch, logs) == ""
    mark(scratch, 7, logs)
    mark(scratch, 8, logs / "elsewhere")
    write_log(logs, 7, "expandable_segments")
    assert unhooked.told(scratch, logs) == ""
    mark(scratch, 9, logs)
    assert "did not start: 1 process (pid 9) made communicators and no log" in unhooked.told(scratch, logs)


@pytest.mark.parametrize("reason", ["no_hook_library", "attach_failed"])
def test_a_hook_that_is_not_attached(folders: tuple[Path, Path], reason: str) -> None:
    """Its log says why; an odd line in it is no matter."""
    scratch, logs = folders
    mark(scratch, 7, logs)
    write_log(logs, 7, reason)
    with (logs / "job.rank0.host.7.jsonl").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(f'"hook.unsupported"\n{{"hook.unsupported"\n{text}')
    assert "1 process (pid 7) made communicators, and tracehook is not attached" in unhooked.told(scratch, logs)

"""`tracehook rotate`: processes that write begin new parts; one that does not is named."""

from __future__ import annotations

from pathlib import Path

from conftest import FakeCore
from typer.testing import CliRunner

from tracehook.commands import app
from tracehook.log.bound import Bound
from tracehook.log.journal import Journal

NAME = "job.rank0.h.7.jsonl"


def rotate(folder: Path, wait: str = "20") -> tuple[int, str, str]:
    """Run the command."""
    done = CliRunner().invoke(app, ["rotate", "--wait", wait, "--", str(folder)])
    return done.exit_code, done.stdout, done.stderr


def test_a_process_that_writes_begins_a_new_part(core: FakeCore, tmp_path: Path) -> None:
    """The command waits for it, and names the part; the log is whole."""
    journal = Journal(core, tmp_path / NAME, {"pid": 7}, bound=Bound(limit=8 << 20))
    journal.start()
    core.push("segment.alloc", segment=5, addr=0x7F00, size=4096)
    journal.flush()
    status, out, err = rotate(tmp_path)
    journal.close(dict)
    part = tmp_path / "job.rank0.h.7.part2.jsonl"
    assert (status, err) == (0, "")
    assert str(part) in out.replace("\n", "")
    assert b'"segment.alloc"' in part.read_bytes()


def test_a_process_that_was_killed_is_named(core: FakeCore, tmp_path: Path) -> None:
    """Its log has no end, and nobody answers."""
    Journal(core, tmp_path / NAME, {"pid": 7})
    status, out, err = rotate(tmp_path, "0.5")
    assert (status, out) == (1, "")
    assert err == "tracehook rotate: 1 process began no new part within 0.5 s: job.rank0.h.7\n"

"""A log that cannot be written: a clear line, and the job goes on."""

import re
from pathlib import Path

import pytest
from support import small_disk
from support.processes import SCRIPTS, Finished, forked, python
from support.processes import run as run_command

from tracehook.log import reader

BUSY = """import torch
from tracehook import _core
for _ in range({events}):
    _core.push("hook.enable", segments=0, bytes=0)
print("done")
"""


# What lives takes 300 KiB of each part.
ALIVE = """import time, torch, tracehook
from tracehook import _core
for number in range(1, 1501):
    kinds = {"memory_kind": 0, "pool_kind": 0, "left_out": 0}
    _core.push("segment.alloc", segment=number, addr=number << 21, size=1 << 21, total=0, device=0, **kinds)
for _ in range(60):
    tracehook.status()
    time.sleep(0.02)
    for _ in range(500):
        _core.push("hook.enable", segments=0, bytes=0)
print("done")
"""


def _run(log: Path | str, code: str = "import torch; print('done')", **env: str) -> Finished:
    run = forked(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(log), **env})
    assert (run.status, run.out) == (0, "done\n"), run.output
    return run


def test_directory_is_made(tmp_path: Path) -> None:
    """A directory that does not exist is made, with those above it."""
    deep = tmp_path / "a" / "b c" / "ü"
    assert _run(deep).err == ""
    assert len(list(deep.glob("*.jsonl"))) == 1


def test_a_program_with_small_stacks_of_threads(tmp_path: Path) -> None:
    """Threads of ours have what an import takes, and those of the program what it asked for."""
    code = "import threading; threading.stack_size(32768); import torch; print(threading.stack_size())"
    run = python(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (run.status, run.out, run.err) == (0, "32768\n", ""), run.output
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


@pytest.mark.parametrize(("place", "cause"), [("file/logs", "Not a directory"), ("file", "no log")])
def test_a_file_in_place_of_a_directory(tmp_path: Path, place: str, cause: str) -> None:
    """One line that names the path and the cause, also below a regular file."""
    Path(tmp_path, "file").touch()
    (line,) = _run(tmp_path / place).err.splitlines()
    assert "SYMM_REGISTER_LOG" in line
    assert str(tmp_path / place) in line
    assert cause in line


def test_where_nothing_can_be_made() -> None:
    """A directory in which no file can be made: one line about the log, and `status()` gives no path of it."""
    code = "import torch, tracehook; print('done'); assert tracehook.status()['log'] is None, tracehook.status()['log']"
    run = _run("/proc", code)
    assert len(run.lines("no log")) == 1, run.output
    assert len(run.lines("/proc/")) <= 2, "one more for the ring"


def test_full_disk_while_a_part_begins(tmp_path: Path) -> None:
    """Where the lines of what lives find no room, one line says so, and no half part is left."""
    # The ring takes 4,121 KiB, and the first part some 500. The next one begins with more than 200: there is no room.
    with small_disk.mounted(tmp_path, b"4750k"):
        run = _run(tmp_path, ALIVE, SYMM_REGISTER_LOG_LIMIT="8MiB")
        (line,) = run.err.splitlines()
        assert "no log from here on" in line
        assert line.endswith("No space left on device; the job goes on")
        assert [file.name.count(".part") for file in tmp_path.glob("*.jsonl*")] == [0], list(tmp_path.iterdir())
        (log,) = reader.read_directory(tmp_path)
        names = [event["event"] for event in log.events]
        assert names.count("segment.alloc") == 1500
        assert log.recovered > 0, "the newest events are in the ring"
        assert names[-1] == "hook.enable"
        said = run_command([SCRIPTS / "tracehook", "audit", tmp_path], timeout=60).out
        name = f"pid {log.begin['pid']}"
        assert re.search(
            rf"First finding.*\(log-stopped\): the log of {name} could not be written any more: No space left", said
        )
        assert "no-end" not in said, "the process ended in order, and the ring knows that"


def test_file_taken_away(tmp_path: Path) -> None:
    """A log directory that is removed while the job runs disturbs nobody."""
    log = tmp_path / "logs"
    code = f"import shutil, torch; shutil.rmtree({str(log)!r}); " + "\n" + BUSY.format(events=2000)
    assert _run(log, code).err == ""
    assert not log.exists()

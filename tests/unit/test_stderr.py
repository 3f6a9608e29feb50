"""What is said on stderr: warnings without a log, and one line when the log cannot be written."""

import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from support.processes import python

from tracehook.log import journal as logs
from tracehook.log import tables
from tracehook.log.parts import Parts
from tracehook.log.stderr import warn

COMM = {"comm": 0xABC, "comm_id": 1, "comm_seq": 7, "comm_rank": 3, "device": 0}
SEGMENT = {"segment": 5, "addr": 0x7F00, "size": 4096}


def test_a_full_disk_at_the_start_is_one_line(core, capsys):
    """If not even the first line can be written, one line says so and events stay in the ring."""
    journal = logs.Journal(core, Path("/dev/full"), {}, os.open("/dev/full", os.O_WRONLY))
    core.push("segment.alloc", **SEGMENT)
    assert journal.flush() == 0
    journal.close(dict)
    full = "/dev/full: No space left on device"
    assert capsys.readouterr().err == f"tracehook: no log from here on, {full}; the job goes on\n"
    assert (core.drained, core.ring_removed, journal.failed) == (0, 0, full)


def test_a_disk_that_fills_up_loses_nothing(tmp_path):
    """When writing fails in the middle, what was written is marked, the rest stays in the ring, and stderr says so."""
    script = """
        import resource, sys
        from pathlib import Path

        from tracehook import _core
        from tracehook.log import journal as logs

        path = Path(sys.argv[1])
        _core.make_process("", 128)
        journal = logs.Journal(_core, path, {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for number in range(100):
            _core.push("hook.enable", segments=number, bytes=4096)
        written = journal.flush()
        assert journal.flush() == 0
        journal.close(dict)
        whole = path.read_bytes().split(b"\\n")[:-1]
        assert 0 < written == len(whole) - 1 < 100, (written, len(whole))
        assert len(_core.peek(128)) == (100 - written) * _core.RECORD_BYTES
    """
    path = tmp_path / "a.jsonl"
    done = python(textwrap.dedent(script), str(path))
    said = f"tracehook: no log from here on, {path}: File too large; the job goes on\n"
    assert (done.status, done.err) == (0, said)


def test_a_closed_stderr_is_no_error(monkeypatch):
    """Where nobody listens, nothing is said and nothing is raised."""
    stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    warn("unheard")


def test_without_a_directory_only_warnings_are_said(core, capsys):
    """Events are drained all the same, so that the ring never fills."""
    journal = logs.Journal(core, None, {})
    core.push("segment.alloc", **SEGMENT)
    core.push("register.local", **COMM, **SEGMENT)
    assert journal.flush() == 2
    assert (core.drained, capsys.readouterr().err) == (2, "")


@pytest.mark.parametrize("event", sorted(tables.WARNINGS - {"log.dropped"}))
def test_every_warning_is_said(core, capsys, event):
    """An event that the table calls a warning is one line on stderr when no log is kept."""
    journal = logs.Journal(core, None, {})
    own = {name: SEGMENT.get(name, 1) for _, name in tables.ABOUT[event].parts("OWN")}
    core.push(event, **(COMM | own), result=1)
    journal.flush()
    err = capsys.readouterr().err
    assert (err.count("\n"), err.startswith("tracehook: ")) == (1, True)


def test_warnings_are_said_however_long_the_log_has_failed():
    """What was told makes room in the ring, so a warning is said also after a thousand events that no file has."""
    script = """
        from pathlib import Path
        import os

        from tracehook import _core
        from tracehook.log import journal as logs
        from tracehook.log.bound import Bound

        _core.make_process("", 128)
        full, small = os.open("/dev/full", os.O_WRONLY), Bound(ring_events=128)
        journal = logs.Journal(_core, Path("/dev/full"), {}, full, bound=small)
        for _ in range(20):
            for number in range(50):
                _core.push("hook.enable", segments=number, bytes=4096)
            journal.flush()
        _core.push("segment.unknown", segment=0, addr=4096, size=1, total=0)
        journal.flush()
        assert len(_core.peek(128)) == 64 * _core.RECORD_BYTES, "the newest are kept, for whoever reads the ring"
        assert _core.dropped() == 20 * 50 + 1 - 64
        journal.close(dict)
    """
    first, second = python(textwrap.dedent(script)).err.splitlines()
    assert "no log from here on" in first
    assert "was freed or replaced, but was not known" in second


@pytest.fixture
def journal(core, tmp_path):
    """Return a journal whose thread runs."""
    made = logs.Journal(core, tmp_path / "a.jsonl", {})
    made.start()
    return made


@pytest.fixture
def dead_server(monkeypatch):
    """Return a switch: once set, a thread that writes into a log waits until the test ends."""
    is_dead, ended = threading.Event(), threading.Event()
    write = Parts.write

    def waiting(file, data):
        if is_dead.is_set():
            ended.wait(60)
        write(file, data)

    monkeypatch.setattr(Parts, "write", waiting)
    monkeypatch.setattr(logs, "_PATIENCE", 0.2)
    yield is_dead
    ended.set()


def test_the_end_does_not_wait_for_a_dead_file_server(core, tmp_path, journal, dead_server, background, capsys):
    """A process ends though its log hangs in the kernel, and says what is missing from the log."""
    dead_server.set()
    core.push("segment.alloc", **SEGMENT)
    assert background(journal.close, dict).returned(10.0)
    assert core.ring_removed == 0, "the events are still in it"
    assert capsys.readouterr().err == (
        f"tracehook: {tmp_path}/a.jsonl takes no more lines, so this log has no end: what is missing is in its ring; "
        "is its file server alive?\n"
    )


def test_the_end_waits_for_a_slow_disk(core, tmp_path, journal, monkeypatch):
    """As long as lines are written, the end waits for all of them, though each takes long."""
    write = Parts.write

    def slow(file, data):
        time.sleep(0.1)
        write(file, data)

    monkeypatch.setattr(Parts, "write", slow)
    monkeypatch.setattr(logs, "_PATIENCE", 2.0)
    for _ in range(30):
        core.push("segment.alloc", **SEGMENT)
    journal.close(dict)
    assert (tmp_path / "a.jsonl").read_bytes().splitlines()[-1].startswith(b'{"event":"trace.end"')
    assert core.ring_removed == 1


def test_asking_does_not_wait_for_a_dead_file_server(core, journal, dead_server, background):
    """`status()` flushes the log: it returns though nothing can be written."""
    dead_server.set()
    core.push("segment.alloc", **SEGMENT)
    assert background(journal.flush).returned(10.0)


def test_asking_waits_for_what_was_noted_before(core, journal):
    """After a flush the log has every event that was there when it was called."""
    for number in range(1, 20):
        core.push("segment.alloc", **SEGMENT)
        journal.flush()
        assert core.drained == number
    journal.close(dict)


@pytest.mark.parametrize("problem", [AttributeError, TypeError, RuntimeError])
def test_a_stderr_of_the_program_may_lack_what_it_should_have(monkeypatch, problem):
    """A warning is lost then, and not the thread that has it."""

    class Tee:
        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None:
            raise problem

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Tee())
    warn("something")
    assert written == ["tracehook: something\n"]

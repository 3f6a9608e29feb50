"""Following logs that grow: every line once, whatever happens to the files meanwhile."""

import json
import os
import re
import struct
import subprocess
import sys
from unittest.mock import Mock

import pytest
from support import watched

from tracehook.audit.live import Follower
from tracehook.audit.live_process import QUIET_AFTER, State
from tracehook.commands import watch_table
from tracehook.log import growing, tables
from tracehook.log.folders import own_host
from tracehook.log.lines import LONGEST_LINE

BEGIN = {"event": "trace.begin", "schema": "1.2", "t_ns": 10**9, "time": "2026-11-21T14:28:11+00:00", "pid": 10}
ALLOC = {"event": "segment.alloc", "seq": 1, "t_ns": 2 * 10**9, "size": 4096}
WALL = 10**9  # the wall clock in seconds, which stands still; long ago, so that all files are new
REFUSED = {"event": "register.local", "seq": 2, "comm": "abc", "comm_id": 1, "ok": False, "error": 3}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Return the clock of the follower, which the test turns; the wall clock, by which rings and logs age, stands."""
    return watched.stop_wall_clock(monkeypatch, WALL)


@pytest.fixture
def follower(tmp_path, clock):
    """Return a follower of the test's directory."""
    return Follower(tmp_path, clock)


def _lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def _append(path, *events, data=b""):
    with path.open("ab") as file:
        file.write(_lines(*events) + data)


def _start(directory, rank, *events):
    path = directory / f"job.rank{rank}.host.{10 + rank}.jsonl"
    _append(path, BEGIN | {"rank": rank, "pid": 10 + rank}, *events)
    return path


def _only(follower):
    (process,) = follower.processes.values()
    return process


def _render(follower, height=None, width=200):
    return watched.rendered(follower, width, height)


# --- increments ---


def test_only_what_is_new_is_read(tmp_path, follower, monkeypatch):
    """A look opens the files that have grown and no others, and reads their new bytes."""
    paths = [_start(tmp_path, rank, *[ALLOC] * 50) for rank in range(20)]
    follower.look()
    opened, pread = Mock(wraps=os.open), os.pread
    read: list[bytes] = []

    def noted(*where):
        read.append(pread(*where))
        return read[-1]

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "pread", noted)
    follower.look()
    assert opened.mock_calls == []
    _append(paths[7], ALLOC)
    follower.look()
    assert ([call.args[0] for call in opened.mock_calls], read[-1], len(read)) == ([paths[7]], _lines(ALLOC), 2)
    assert len(read[0]) <= 128  # whether it is the same file still


def test_a_line_counts_once_it_is_whole(tmp_path, follower):
    """However small the pieces are that arrive, also of the first line, it counts then and not before."""
    path = tmp_path / "a.jsonl"
    written = b""
    for byte in _lines(BEGIN, ALLOC, REFUSED, ALLOC):
        written += bytes([byte])
        _append(path, data=bytes([byte]))
        follower.look()
        if whole := written.count(b"\n"):
            process = _only(follower)
            assert (process.summary.segments, process.alerts) == [(0, 0), (1, 0), (1, 1), (2, 1)][whole - 1]
            assert process.foreign == 0


def test_a_large_log_is_read_in_turns(tmp_path, follower):
    """When time is up the rest is left to later looks, and every file has its turn."""
    paths = [_start(tmp_path, rank, *[ALLOC] * 10_000) for rank in range(3)]
    assert all(path.stat().st_size > 2 * growing.CHUNK for path in paths)
    follower.look(0)
    assert (len(follower.processes), follower.behind > 0) == (1, True)
    follower.look(0)
    follower.look(0)
    assert len(follower.processes) == 3
    assert "still reading" in _render(follower)
    assert "; still reading: " in watch_table.sentence(follower)
    looks = 3
    while follower.behind:
        follower.look(0)
        looks += 1
    assert [process.summary.segments for process in follower.processes.values()] == [10_000] * 3
    assert looks == sum(-(-path.stat().st_size // growing.CHUNK) for path in paths)


# --- files that come, go and change ---


def test_a_directory_that_comes_later(tmp_path, clock):
    """Nothing there is nothing to show, and files that appear later are followed; a file in its place is an error."""
    directory = tmp_path / "logs"
    follower = Follower(directory, clock)
    follower.look()
    assert "not there yet" in watch_table.nothing(follower)
    directory.mkdir()
    follower.look()
    assert "no .jsonl log in it yet" in watch_table.nothing(follower)
    for rank in range(3):
        _start(directory, rank, ALLOC)
        follower.look()
        assert len(follower.processes) == rank + 1
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        Follower(tmp_path / "file", clock).look()


@pytest.mark.parametrize(("before", "how", "after"), [(2, "renamed", 7), (1, "written", 3), (9, "written", 1)])
def test_another_file_of_the_same_name_is_another_log(tmp_path, follower, before, how, after):
    """One that took its place, or was made anew with the same inode, longer or shorter: the counts begin anew."""
    path = _start(tmp_path, 0, *[ALLOC] * before)
    follower.look()
    place = tmp_path / "other" if how == "renamed" else path
    place.write_bytes(_lines(BEGIN | {"rank": 5, "pid": 50, "t_ns": 5}, *[ALLOC] * after))
    place.rename(path)
    for _ in range(2):
        follower.look()
    assert (_only(follower).summary.rank, _only(follower).summary.segments) == (5, after)


def test_a_file_that_goes_is_gone(tmp_path, follower):
    """Its row goes with it, and the others stay; without the directory nothing is left."""
    gone, stays = _start(tmp_path, 0), _start(tmp_path, 1)
    follower.look()
    gone.unlink()
    follower.look()
    assert list(follower.processes) == [stays.name]
    stays.unlink()
    tmp_path.rmdir()
    follower.look()
    assert (follower.processes, follower.skipped) == ({}, {})


def test_a_file_that_is_replaced_between_look_and_read(tmp_path, follower, monkeypatch):
    """Nothing of the new file is taken for the old one's."""
    path = _start(tmp_path, 0, ALLOC)
    follower.look()
    _append(path, ALLOC)
    fstat = os.fstat

    def another(_):
        monkeypatch.undo()
        with open(os.devnull) as file:
            return fstat(file.fileno())

    monkeypatch.setattr(os, "fstat", another)
    follower.look()
    assert follower.processes == {}
    follower.look()
    assert _only(follower).summary.segments == 2


# --- what is no log ---


@pytest.mark.parametrize(
    "data",
    [
        b"NCCL WARN something\n",
        b"\xff\xfe\x00\n",
        b"[1]\n",
        b"null\n",
        b'{"event": "segment.alloc"}\n',
        b'{"event": "trace.begin", "schema": "9.0"}\n',
        b'{"event": "trace.begin"}\n',
        b"\n",
        b"x" * (LONGEST_LINE + 2 * growing.CHUNK) + b"\n",
    ],
)
def test_a_file_that_is_no_log_is_named_and_left_alone(tmp_path, follower, data):
    """It hides no other, and is not read again when it grows; a log that takes its place is."""
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_bytes(data)
    _start(tmp_path, 0, ALLOC)
    follower.look()
    assert list(follower.skipped) == ["foreign.jsonl"]
    assert _only(follower).summary.segments == 1
    assert "foreign.jsonl" in _render(follower)
    _append(foreign, BEGIN)
    follower.look()
    assert list(follower.skipped) == ["foreign.jsonl"]
    foreign.unlink()
    _append(foreign, BEGIN | {"rank": 1}, *[ALLOC] * 100)
    follower.look()
    follower.look()  # a file system may give the new file the number of the old one
    assert (follower.skipped, len(follower.processes)) == ({}, 2)


@pytest.mark.parametrize("line", [b"NCCL WARN x", b"[1]", b"\xff", b"{" * 5000, b"y" * (LONGEST_LINE + growing.CHUNK)])
def test_a_foreign_line_costs_itself(tmp_path, follower, line):
    """Lines around it count, and the number of such lines is shown."""
    path = _start(tmp_path, 0, ALLOC)
    follower.look()
    _append(path, data=line + b"\n" + _lines(ALLOC))
    follower.look()
    assert (_only(follower).summary.segments, _only(follower).foreign) == (2, 1)
    assert "1 lines are no events" in _render(follower)


def test_a_pipe_does_not_hang_the_watch(tmp_path, follower):
    """What is no regular file is skipped, even if nobody writes to it."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    follower.look()
    assert follower.skipped == {"pipe.jsonl": "not a regular file"}


@pytest.mark.parametrize("value", [None, -1, 1 << 70, 10**400, 1.5, "7", [1], {"a": 1}, True])
def test_strange_values_break_nothing(tmp_path, follower, value):
    """A log that somebody edited is shown as far as it can be."""
    fields = ("comm_id", "total", "count", "t_ns", "dropped", "rank", "error", "size", "ok", "time", "pid")
    strange = dict.fromkeys(fields, value)
    events = [strange | {"event": name, "seq": value} for name in tables.EVENTS if name != "trace.begin"]
    _append(tmp_path / "a.jsonl", strange | BEGIN | {"rank": value, "pid": value, "time": value}, *events)
    follower.look()
    assert "1 process: 1 ended" in _render(follower)
    assert watch_table.sentence(follower).startswith("1 process: 1 ended")


def test_names_are_shown_and_not_obeyed(tmp_path, clock):
    """Neither control characters nor markup reach the terminal, from file names, directories or fields."""
    evil = "[red]x[/red]\x1b[2J\x07\u202e\ud800"
    directory = tmp_path / "[bold]\x1b]0;evil"
    directory.mkdir()
    refused = REFUSED | {"comm": evil, "error": "[/]" + "long" * 1000}
    _append(directory / "a.jsonl", BEGIN | {"rank": 0}, refused)
    (directory / "[blink]\x1b[31m.jsonl").write_text('{"event": "trace.begin", "schema": "\\u001b[7m9"}\n')
    follower = Follower(directory, clock)
    follower.look()
    lines = [watch_table.sentence(follower), *map(watch_table.alert, follower.processes.values())]
    for text in (_render(follower), "\n".join(lines)):
        assert not set(text) & set("\x1b\x07\u202e\ud800")
    assert "[bold]?]0;evil" in _render(follower)
    assert "[red]x[/red]?[2J???" in lines[1]
    assert "[blink]?[31m.jsonl" in _render(follower)
    assert max(map(len, lines)) <= 300


# --- states ---


def test_running_quiet_and_ended(tmp_path, follower, clock, core):
    """A process is quiet when nothing new came for a while, and ended when its log says so."""
    path = _start(tmp_path, 0, ALLOC)
    path.with_suffix(".ring").write_bytes(core.ring_file())
    follower.look()
    assert _only(follower).state(clock.now)[0] == State.RUNNING
    clock.now += QUIET_AFTER + 7
    follower.look()
    assert _only(follower).state(clock.now) == (State.QUIET, pytest.approx(QUIET_AFTER + 7, abs=1))
    _append(path, ALLOC)
    follower.look()
    assert _only(follower).state(clock.now) == (State.RUNNING, 0)
    assert not follower.all_ended
    _append(path, {"event": "trace.end", "dropped": 3})
    clock.now += 99
    follower.look()
    assert _only(follower).state(clock.now) == (State.ENDED, 0)
    assert (follower.all_ended, _only(follower).dropped) == (True, 3)


def test_an_old_log_was_quiet_before_the_first_look(tmp_path, follower, clock, core):
    """How long nothing came is known from the file itself; without a ring the process is gone, or never had one."""
    path = _start(tmp_path, 0, ALLOC)
    ring_path = path.with_suffix(".ring")
    ring_path.write_bytes(core.ring_file())
    os.utime(path, (WALL - 500,) * 2)
    follower.look()
    assert _only(follower).state(clock.now) == (State.QUIET, 500)
    ring_path.unlink()
    follower.look()
    assert _only(follower).state(clock.now)[0] == State.NO_END


def _ring_of(core, *counts, **more):
    return watched.ring_header(*counts, **more) + core.ring_file()[4096:]


def test_events_that_wait_in_the_ring(tmp_path, follower, clock, core):
    """What is not in the file yet is counted from the ring's header, and is a sign of life."""
    path = _start(tmp_path, 0, ALLOC)
    ring_path = path.with_suffix(".ring")
    ring_path.write_bytes(_ring_of(core, 1, 1))
    follower.look()
    for second in range(1, 4):
        clock.now += QUIET_AFTER
        ring_path.write_bytes(_ring_of(core, 1 + 10 * second, 1 + 10 * second - 3, dropped=5))
        follower.look()
        process = _only(follower)
        assert (process.waiting, process.dropped, process.state(clock.now)[0]) == (3, 5, State.RUNNING)
    assert process.rates() == (pytest.approx(10 / QUIET_AFTER), 0)


def test_events_that_nobody_writes(tmp_path, follower, clock, core):
    """A ring that is not drained any more tells of a process that was killed or stopped, also while it is filled."""
    path = _start(tmp_path, 0, ALLOC)
    ring_path = path.with_suffix(".ring")
    for pushed in range(1, 9):
        ring_path.write_bytes(_ring_of(core, pushed, 1))
        follower.look()
        clock.now += 1
    assert _only(follower).state(clock.now)[0] == State.STUCK
    ring_path.write_bytes(_ring_of(core, 8, 8))
    follower.look()
    assert _only(follower).state(clock.now)[0] == State.RUNNING


def test_a_process_that_looks_is_alive(tmp_path, follower, clock, core):
    """As long as it looks for something to log it is quiet; when it does not any more it is silent, since then."""
    path = _start(tmp_path, 0, ALLOC)
    ring_path = path.with_suffix(".ring")
    epoch_ns = (WALL - 1) * 10**9
    for second in range(1, 20):
        ring_path.write_bytes(_ring_of(core, 1, 1, looked_ns=second * 10**9, epoch_ns=epoch_ns))
        follower.look()
        clock.now += 1
    assert _only(follower).state(clock.now) == (State.QUIET, 19)
    clock.now += 40
    follower.look()
    assert _only(follower).state(clock.now) == (State.SILENT, pytest.approx(41))
    assert "silent 41 s" in _render(follower)


@pytest.mark.parametrize(("host", "state"), [(own_host(), State.GONE), ("elsewhere", State.SILENT)])
def test_a_process_that_this_host_has_no_more_is_gone(tmp_path, follower, clock, core, host, state):
    """Of another host's process the watch only knows that it looks no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    path = tmp_path / f"job.rank0.host.{ended.pid}.jsonl"
    _append(path, BEGIN | {"rank": 0, "pid": ended.pid, "host": host}, ALLOC)
    looked = _ring_of(core, 1, 1, looked_ns=5 * 10**9, epoch_ns=(WALL - 305) * 10**9)
    path.with_suffix(".ring").write_bytes(looked)
    follower.look()
    assert _only(follower).state(clock.now) == (state, 300)
    assert follower.all_ended == (state is State.GONE)


def test_when_a_killed_process_was_last_alive(tmp_path, follower, clock, core):
    """One look is enough: the ring says when it last looked; a clock that is ahead of ours is no sign of death."""
    killed, ahead = _start(tmp_path, 0, ALLOC), _start(tmp_path, 1, ALLOC)
    for path, ago in ((killed, 300), (ahead, -300)):
        epoch_ns = (WALL - 5 - ago) * 10**9
        path.with_suffix(".ring").write_bytes(_ring_of(core, 3, 1, looked_ns=5 * 10**9, epoch_ns=epoch_ns))
    follower.look()
    states = [follower.processes[path.name].state(clock.now) for path in (killed, ahead)]
    assert states == [(State.SILENT, 300), (State.RUNNING, 0)]


@pytest.mark.parametrize(
    "data", [b"", b"x" * 5000, struct.pack("<8sIIQQQQQQ", b"THRING02", 4096, 96, 0, 9, 0, 0, 0, 0)]
)
def test_a_damaged_ring_is_as_none(tmp_path, follower, data):
    """The log beside it is followed all the same."""
    _start(tmp_path, 0, ALLOC).with_suffix(".ring").write_bytes(data)
    follower.look()
    assert (_only(follower).summary.segments, _only(follower).waiting) == (1, 0)


def test_rates_are_of_the_last_seconds(tmp_path, follower, clock):
    """What was there at the first look is no rate, and what is long ago neither."""
    path = _start(tmp_path, 0, *[ALLOC] * 100)
    follower.look()
    assert _only(follower).rates() is None
    made = {"event": "register.local", "seq": 1, "comm_id": 1, "ok": True}
    for _ in range(5):
        clock.now += 1
        _append(path, *[made] * 4, ALLOC)
        follower.look()
    assert _only(follower).rates() == (5, 4)
    for _ in range(6):
        clock.now += 1
        follower.look()
    assert _only(follower).rates() == (0, 0)


# --- the table ---


def test_a_table_as_high_as_the_terminal(tmp_path, follower):
    """The sum of all first, then those with warnings, then the quietest, and how many more there are."""
    for rank in range(500):
        path = _start(tmp_path, rank, ALLOC | {"total": 1 << 20}, *([REFUSED] if rank == 321 else []))
        if rank == 77:
            os.utime(path, (WALL - 3600,) * 2)
    follower.look()
    lines = _render(follower, height=24).splitlines()
    assert len(lines) <= 24
    assert lines[0].endswith("500 processes: 499 running, 1 no trace.end")
    everyone, *ranks = [line.split() for line in lines[3:] if line.split()[-1] == "0"]
    assert everyone[:4] == ["all", "500", "500", "MiB"]
    assert [row[0] for row in ranks] == ["321", "77", *map(str, range(len(ranks) - 2))]
    assert f"and {500 - len(ranks)} more" in lines
    assert "rank 321: NCCL refused to register segment ? with communicator abc: error 3" in lines[-1]
    assert _render(follower).count("MiB") == 501


def test_the_latest_warning_is_the_one_in_words(tmp_path, follower):
    """Of all processes the one that happened last, at its time; one of a later version by its name."""
    _start(tmp_path, 0, REFUSED | {"t_ns": 9 * 10**9})
    _start(tmp_path, 1, {"event": "log.dropped", "t_ns": 61 * 10**9, "count": 12})
    _start(tmp_path, 2, REFUSED | {"t_ns": 5 * 10**9})
    follower.look()
    last = _render(follower).splitlines()[-1]
    assert last.endswith(":29:11 rank 1: 12 events found the ring full and are not in the log")
    process = next(iter(follower.processes.values()))
    process.latest = {"event": "new.{event}"}
    assert watch_table.alert(process) == "rank 0: new.{event}"


@pytest.mark.parametrize("event", sorted(tables.WARNINGS | tables.PROBLEMS))
def test_everything_that_is_counted_has_words(tmp_path, follower, event):
    """No warning is shown as a bare name, and of its sentences the first, without its full stop."""
    _start(tmp_path, 0, {"event": event, "seq": 1, "t_ns": 10**9, "advice": "do", "reason": "why"})
    follower.look()
    words = watch_table.alert(_only(follower)).partition(": ")[2]
    assert len(words.split()) > 4
    assert words[-1] not in ".}"
    assert words == re.sub(r"{\w+}", "?", words)


def test_a_table_fits_a_terminal_of_80_columns(tmp_path, follower, clock, core):
    """With the numbers of a usual job nothing is cut."""
    for rank in range(8):
        path = _start(tmp_path, rank, ALLOC | {"total": 60 << 30})
        path.with_suffix(".ring").write_bytes(core.ring_file())
    follower.look()
    clock.now += 100
    follower.look()
    text = _render(follower, width=80)
    assert "…" not in text
    assert "quiet 100 s" in text
    assert QUIET_AFTER < 100


# --- several jobs, and launchers ---

USED = {"event": "segment.alloc", "seq": 1, "t_ns": 2, "device": 0, "total": 512}


def _write(directory, name, *events, **begin):
    first = {"event": "trace.begin", "schema": "1.12", "t_ns": 1, "pid": 1, "argv": ["/x/train.py"], **begin}
    lines = (json.dumps(event) + "\n" for event in (first, *events))
    directory.joinpath(f"{name}.jsonl").write_text("".join(lines))


def test_the_newest_job_is_followed(tmp_path):
    """What is left out is said; a job that begins later takes its place; one that was chosen stays."""
    newest, chosen = Follower(tmp_path), Follower(tmp_path, job="a")
    _write(tmp_path, "a", job="a", rank=0, time="2026-11-21T12:00:00+00:00")
    for follower in (newest, chosen):
        follower.look()
        assert (list(follower.processes), follower.left_out) == (["a.jsonl"], "")
    _write(tmp_path, "b", job="b", rank=0, time="2026-11-21T13:00:00+00:00")
    for follower in (newest, chosen):
        follower.look()
    assert (list(newest.processes), list(chosen.processes), chosen.left_out) == (["b.jsonl"], ["a.jsonl"], "")
    assert "left out: a (train.py, began 2026-11-21T12:00:00 UTC, rank 0)" in newest.left_out


def test_a_job_that_is_not_there_yet(tmp_path):
    """It may still begin: until then there are no processes, and why is said."""
    follower = Follower(tmp_path, job="b")
    _write(tmp_path, "a", job="a", rank=0)
    follower.look()
    assert follower.processes == {}
    assert "no job 'b' in it; there are: a (train.py" in follower.missing
    _write(tmp_path, "b", job="b", rank=0)
    follower.look()
    assert (list(follower.processes), follower.missing) == (["b.jsonl"], "")


def test_launchers_are_followed_and_not_shown(tmp_path):
    """Until a process has a rank or a device they are all there is; the job ends when they have ended too."""
    quiet, everybody = Follower(tmp_path), Follower(tmp_path, show_all=True)
    _write(tmp_path, "launcher", job="a")
    quiet.look()
    assert list(quiet.processes) == ["launcher.jsonl"]
    _write(tmp_path, "worker", USED, {"event": "trace.end", "t_ns": 3}, job="a")
    for follower in (quiet, everybody):
        follower.look()
    assert (set(quiet.processes), quiet.all_ended) == ({"worker.jsonl"}, False)
    assert set(everybody.processes) == {"worker.jsonl", "launcher.jsonl"}

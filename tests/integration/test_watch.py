"""``tracehook watch`` beside a job that runs: in a terminal and in a pipe; and how it ends.

What it makes of logs and of processes that were killed: tests/unit/test_follow.py.
"""

import codecs
import fcntl
import json
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import SCRIPTS, environment, run
from support.rehearsal import JOBS, Rehearsal, rehearse

TRACEHOOK = SCRIPTS / "tracehook"
PATIENCE = 60.0
SCREEN = 16384  # characters, more than one picture of the table takes
RANKS = 2
# With the terminal as its own, if stdin is one, and with interrupts, also where whoever runs the tests ignores them.
START = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
JOB = """
import pathlib, sys, time
import torch
import torch.distributed as dist

sys.path.append(sys.argv[2])
from common import MB, filled, start

def wait(name):
    while not pathlib.Path(sys.argv[1], name).exists():
        time.sleep(0.01)

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
wait("grow")
more = [torch.empty(size * MB, dtype=torch.uint8, device=device) for size in (50, 60, 70)]
wait("end")
dist.destroy_process_group()
"""


class Watch:
    """A running ``tracehook watch`` and what it has written, in a terminal of its own or in a pipe."""

    def __init__(self, *arguments: str | Path, terminal: bool = False, rows: int = 30) -> None:
        self._text, self._cut, self._terminal = "", "", terminal
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        if terminal:
            self._source, theirs = os.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        else:
            self._source, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, TRACEHOOK, "watch", *arguments],
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=environment({"TERM": "xterm", "COLUMNS": ""}),
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until what was written since the last match matches."""
        deadline = time.monotonic() + PATIENCE
        wanted, start = re.compile(pattern), 0
        while (found := wanted.search(self._text, start)) is None:
            start = max(0, len(self._text) - SCREEN)
            assert self._read(deadline), f"{pattern!r} never came: {self._text[-2000:]}"
        self._text = self._text[found.end() :]
        return found

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._source, key)

    def rest(self) -> str:
        """Wait for the end, and return what was written since the last match."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        self.process.wait(PATIENCE)
        return self._text

    def _read(self, deadline: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._source, selectors.EVENT_READ)
            assert selector.select(max(0, deadline - time.monotonic())), f"no more came: {self._text[-2000:]}"
        try:
            data = os.read(self._source, 65536)
        except OSError:  # the other end of a terminal is closed
            return False
        text = self._cut + self._decode(data)
        if self._terminal:  # without colours, so that words which stand side by side are found so
            text, mark, rest = re.sub(r"\x1b\[[\d;]*m", "", text).rpartition("\x1b")
            self._cut = mark + rest
            if not data or re.match(r"\[[\d;?]*[A-Za-z]", rest) or not mark:
                text, self._cut = text + self._cut, ""
        self._text += text
        return bool(data)

    def close(self) -> None:
        """End it, should it still run."""
        self.process.kill()
        self.process.communicate()
        os.close(self._source)

    @property
    def ended(self) -> tuple[int, bytes]:
        """Exit status, and what was said on stderr."""
        assert self.process.stderr is not None
        return self.process.wait(PATIENCE), self.process.stderr.read()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Start watches that do not outlive the test."""
    started: list[Watch] = []

    def start(*arguments: str | Path, **how: bool | int) -> Watch:
        started.append(Watch(*arguments, **how))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.close()


def _log(directory: Path, rank: int, *events: dict[str, object]) -> Path:
    """Write a log whose process runs, however late the first look at it comes."""
    path = directory / f"job.rank{rank}.host.{100 + rank}.jsonl"
    begin = {"event": "trace.begin", "schema": "1.2", "t_ns": 1, "rank": rank, "pid": 100 + rank}
    aside = path.with_suffix(".new")
    aside.write_text("".join(json.dumps(event) + "\n" for event in (begin, *events)))
    os.utime(aside, (time.time() + 3600,) * 2)  # without a ring, its age at the first look tells whether it runs
    return aside.rename(path)


END = {"event": "trace.end", "t_ns": 2, "dropped": 0}


def test_a_job_is_watched_while_it_runs(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """From before its directory exists until all have ended: what each rank does is seen, in terminal and pipe."""
    logs, script = tmp_path / "logs", tmp_path / "job.py"
    script.write_text(JOB)
    screen = watch(logs, "--interval", "0.1", terminal=True)
    lines = watch(logs, "--interval", "0.1")
    screen.until("not there yet")
    lines.until("not there yet")
    outcome: list[Rehearsal] = []

    def job() -> None:
        outcome.append(rehearse(script, str(tmp_path), str(JOBS), ranks=RANKS, log=logs, timeout=PATIENCE))

    thread = threading.Thread(target=job)
    thread.start()
    try:
        # rank, pid, state, segments, bytes, communicators, registrations held
        row = r"(\d+ +\d+|all) +(?:running|quiet [^ ]+ s)? +{segments} +[\d.]+ MiB +{comms} +{held} "
        one, all_of_them = (row.format(segments=n, comms=n, held=n) for n in (1, RANKS))
        screen.until(all_of_them)
        screen.until(one)
        lines.until(f"{RANKS} segments, .*{RANKS} communicators; {RANKS} registrations held")
        (tmp_path / "grow").touch()
        screen.until(row.format(segments=4 * RANKS, comms=RANKS, held=4 * RANKS))
        lines.until(f"{4 * RANKS} segments, .*{4 * RANKS} registrations held")
    finally:
        for name in ("grow", "end"):
            (tmp_path / name).touch()
        thread.join()
    outcome[0].assert_good()
    assert re.search(r"processes: \d ended", screen.rest())
    assert re.search(r"processes: \d ended; 8 segments, .*; 0 registrations held", lines.rest())
    assert (screen.ended, lines.ended) == ((0, b""), (0, b""))
    once = run([TRACEHOOK, "watch", logs, "--once"])
    assert (once.status, once.err) == (0, "")
    assert len(re.findall(r"(?m)^ +[01] +\d+ +ended +4 .*MiB +0 +0 ", once.out)) == RANKS, once.out


def test_control_c_ends_the_live_view(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """The key ends it with status 0 and no words; the terminal is as before, and the last table stays on it."""
    _log(tmp_path, 3)
    screen = watch(tmp_path, terminal=True)
    screen.until(re.escape("\x1b[?1049h"))
    screen.until("3 +103 +")
    screen.press(b"\x03")
    screen.until(re.escape("\x1b[?1049l"))
    assert re.search("3 +103 +", screen.rest())
    assert screen.ended == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_terminal_that_can_be_used(
    watch: Callable[..., Watch], tmp_path: Path, number: signal.Signals
) -> None:
    """The usual screen and the cursor come back, and the status tells of the signal."""
    _log(tmp_path, 3)
    screen = watch(tmp_path, terminal=True)
    screen.until("3 +103 +")
    screen.process.send_signal(number)
    rest = screen.rest()
    assert ("\x1b[?1049l" in rest, "\x1b[?25h" in rest) == (True, True)
    assert screen.ended == (128 + number, b"")


def test_an_interrupt_ends_the_lines(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """In a pipe there is not one control code, and the end is quiet."""
    _log(tmp_path, 3)
    lines = watch(tmp_path, "--interval", "0.1")
    text = lines.until(r"(?s).*events/s.*\n")[0]
    lines.process.send_signal(signal.SIGINT)
    text += lines.rest()
    assert "\x1b" not in text
    assert lines.ended == (0, b"")


def test_keep_watches_on(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """Without it the watch ends when all have ended; with it, it waits for processes that start later."""
    _log(tmp_path, 0, END)
    assert watch(tmp_path, "--interval", "0.1").ended == (0, b"")
    lines = watch(tmp_path, "--interval", "0.1", "--keep")
    for _ in range(4):
        lines.until("1 process: 1 ended")
    _log(tmp_path, 1)
    lines.until("2 processes: 1 running, 1 ended")


def test_an_interval_that_is_too_short() -> None:
    """It is refused with the shortest one."""
    finished = run([TRACEHOOK, "watch", "x", "--interval", "0.01"])
    assert finished.status == 2
    assert "0.1" in finished.err

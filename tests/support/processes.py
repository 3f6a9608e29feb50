"""Run a command in a process group of its own, with a deadline, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from support import warm

# What the machine or the caller may have set, and what would change what a job or a command does.
_FOREIGN = re.compile(
    r"SYMM_REGISTER_|TRACEHOOK_|TORCH_NCCL_|NCCL_|PYTORCH_|TORCHELASTIC_|TORCH_DEVICE_BACKEND|PYTEST_|PYTHONPATH$"
    r"|COLUMNS$|CUDA_VISIBLE_DEVICES$|LD_PRELOAD$|LD_LIBRARY_PATH$|(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$"
)
_MARK = "TRACEHOOK_WARM_RUN"  # which the server of the warm start keeps for each process that it forks
GRACE = 10.0  # seconds in which what a command leaves may end by itself; nobody waits where nothing is left
SCRIPTS = Path(sys.executable).parent


class Running(Protocol):
    """A process of ours."""

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, a signal as a negative number, or raise TimeoutExpired."""

    def kill(self) -> None:
        """End it, and its process group."""


class Cold(subprocess.Popen[bytes]):
    """A process that we start, in a session of its own."""

    def __init__(
        self, command: Sequence[str | Path], env: Mapping[str, str], out: IO[bytes], err: IO[bytes], cwd: Path | None
    ) -> None:
        super().__init__(
            [str(part) for part in command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            start_new_session=True,
        )

    def kill(self) -> None:
        """End it, and its process group."""
        os.killpg(self.pid, signal.SIGKILL)


# Starts processes that write to two files. They must have a mark in their environment.
Start = Callable[[dict[str, str], IO[bytes], IO[bytes]], Sequence[Running]]


@dataclass(frozen=True)
class Finished:
    """A command that ended: exit status (negative: the signal), what it said, and whether the deadline ended it."""

    status: int
    out: str
    err: str
    late: bool
    orphans: int

    @property
    def output(self) -> str:
        """Both streams, for the message of a failed assertion."""
        return f"status {self.status}{', too late' if self.late else ''}\n{self.out}\n{self.err}"

    def lines(self, text: str) -> list[str]:
        """Return the lines of stderr that contain `text`."""
        return [line for line in self.err.splitlines() if text in line]


# Rehearsed jobs share a host and use memory of cudaMalloc, of which NCCL could use no registration: where a test does
# not say what is registered, it is every segment.
_EVERY_SEGMENT = {"SYMM_REGISTER_LOCAL": "all"}


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process without what concerns tracehook, torch or NCCL, and with `changes`."""
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    kept["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"  # Python 3.12 on a fork beside threads
    kept["OMP_NUM_THREADS"] = "1"
    kept |= _EVERY_SEGMENT
    kept.update(changes or {})
    return kept


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    cwd: Path | None = None,
    grace: float = GRACE,
) -> Finished:
    """Run `command` with `env` on top of a clean environment.

    What it left running and does not end within `grace` seconds is killed, by process id.
    """

    def start(mark: dict[str, str], out: IO[bytes], err: IO[bytes]) -> list[Running]:
        return [Cold(command, environment(env) | mark, out, err, cwd)]

    return run_together(start, timeout, grace)


def run_together(start: Start, timeout: float, grace: float = GRACE) -> Finished:
    """Wait for all processes that `start` starts. The status is that of the first one that did not end well.

    What they left running and does not end within `grace` seconds is killed, by process id.
    """
    mark = uuid.uuid4().hex
    # Files and not pipes: a process that outlives the command must not keep us waiting.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = start({_MARK: mark}, out, err)
        deadline = time.monotonic() + timeout  # only now: a warm server may have had to import torch first
        late = False
        statuses = []
        for process in started:
            try:
                statuses.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                late = True
                process.kill()
                statuses.append(process.wait())
        orphans = _end_all(mark, grace)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Finished(next(filter(None, statuses), 0), texts[0], texts[1], late, orphans)


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
    """Run `code` in a new interpreter."""
    return run([sys.executable, "-c", code, *arguments], env, timeout)


def forked(code: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
    """Run `code` as :func:`python` does, where it need not be shown how torch itself is imported: that takes seconds.

    The process is forked from a warm server, and sees an emulated device.
    """
    if not warm.WANTED:
        return python(code, *arguments, env=env, timeout=timeout)
    server = warm.server(environment())
    whole = warm.environment(environment(env))

    def start(mark: dict[str, str], out: IO[bytes], err: IO[bytes]) -> list[Running]:
        return [warm.Forked(server, ["-c", code, *arguments], whole | mark, out, err)]

    return run_together(start, timeout)


def _end_all(mark: str, grace: float) -> int:
    """End what is left of a run after `grace` seconds; return how many processes that were."""
    ended = 0
    patience = time.monotonic() + grace
    while (found := _marked(f"{_MARK}={mark}".encode()) | warm.living(mark)) and time.monotonic() < patience + GRACE:
        if time.monotonic() >= patience:
            ended = max(ended, len(found))
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return ended


def _marked(mark: bytes) -> set[int]:
    """Return the processes that were started with `mark` in their environment: those of one run and no others."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found

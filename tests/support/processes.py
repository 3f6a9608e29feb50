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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import warm

# What the machine or the caller may have set, and what would change a job's behaviour.
_FOREIGN = re.compile(
    r"SYMM_REGISTER_|TRACEHOOK_|TORCH_NCCL_|NCCL_|PYTORCH_|TORCHELASTIC_|TORCH_DEVICE_BACKEND|PYTEST_|PYTHONPATH$"
    r"|CUDA_VISIBLE_DEVICES$|LD_PRELOAD$|LD_LIBRARY_PATH$|(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$"
)
_MARK = "TRACEHOOK_WARM_RUN"  # which the server of the warm start keeps for each process that it forks
SCRIPTS = Path(sys.executable).parent


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


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process without what concerns tracehook, torch or NCCL, and with `changes`."""
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    kept["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"  # Python 3.12 on a fork beside threads
    kept["OMP_NUM_THREADS"] = "1"
    kept.update(changes or {})
    return kept


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    cwd: Path | None = None,
) -> Finished:
    """Run `command` with `env` on top of a clean environment. What it left running is killed, by process id."""
    mark = uuid.uuid4().hex
    # Files and not pipes: a process that outlives the command must not keep us waiting.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment(env) | {_MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            start_new_session=True,
        )
        late = False
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        orphans = _end_all(mark)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Finished(status, texts[0], texts[1], late, orphans)


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
    """Run `code` in a new interpreter."""
    return run([sys.executable, "-c", code, *arguments], env, timeout)


def _end_all(mark: str) -> int:
    ended = 0
    for _ in range(50):
        found = _marked(f"{_MARK}={mark}".encode()) | warm.living(mark)
        if not found:
            break
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

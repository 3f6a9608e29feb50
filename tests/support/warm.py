"""Warm servers for the rehearsals of this process: torch is imported once for each setting that it reads then."""

from __future__ import annotations

import atexit
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tracehook.rehearsal import client, emulation, program
from tracehook.rehearsal.warm import Warm

# What the command and the launchers of the tests want besides torch.
_PRELOAD = ("tracehook.commands", "torch.distributed.run", "tracehook.hook.service", "numpy")
# And what the ranks of a training want, each of which would take longer to import it than torch itself.
_OF_TRAINING = ("torch._dynamo", "torch.distributed.fsdp")
_TRAINS = re.compile(
    r"\b(harmless|fully_shard|optim|DistributedDataParallel|_dynamo|torch\.compile|pipelining)\b|distributed.tensor"
)
# 0: every process imports torch for itself.
WANTED = os.environ.get("TRACEHOOK_TEST_WARM", "1") != "0"
_UMASK = os.umask(0o077)
os.umask(_UMASK)  # there is no way to look at it alone
# By what torch reads when it is imported, and whether a training is to be forked.
_started: dict[tuple[frozenset[tuple[str, str]], bool], Warm] = {}
_starting = threading.Lock()


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with the emulated libraries loaded, as they are in the server."""
    emulated = emulation.environment(1, Path(tempfile.gettempdir()), base=base)
    return {name: value for name, value in emulated.items() if not name.startswith("TRACEHOOK_EMU_")}


def server(base: Mapping[str, str], command: Sequence[str | Path] = ()) -> Warm:
    """Return the server for a command in `base`, started by the first who asks; it ends with this process."""
    programs = (Path(word) for word in command if str(word).endswith(".py"))
    trains = any(_TRAINS.search(each.read_text()) for each in programs if each.is_file())
    wanted = (frozenset(program.read_at_import(base).items()), trains)
    with _starting:
        if wanted not in _started:
            _started[wanted] = Warm(environment(base), (*_PRELOAD, *(_OF_TRAINING if trains else ())))
            atexit.register(_started[wanted].close)
        return _started[wanted]


def living(run: str) -> set[int]:
    """Return the processes of a run that the server has forked, and theirs, as far as they have not ended."""
    return {pid for started in _started.values() for pid in started.living(run)}


class Forked:
    """``python ARGUMENTS`` in a process that a server forks for us, with no client between us and it."""

    def __init__(
        self, server: Warm, arguments: Sequence[str], env: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> None:
        """Start it. A program that the server would not fork costs seconds: the test has to say that it is cold."""
        environ = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        self._arguments = arguments
        self._killed = False
        self._connection = client.connect(str(server.socket))
        with open(os.devnull, "rb") as nothing:
            request: tuple[object, ...] = (
                "run",
                list(arguments),
                environ,
                os.fsencode(Path.cwd()),
                _UMASK,
                [],
                [0, 1, 2],
            )
            client.send(self._connection, request, [nothing.fileno(), out.fileno(), err.fileno()])
            kind, _ = self._answer()
        if kind == client.COLD:
            self._connection.close()
            raise AssertionError(f"not started warm: {server.report()[1]}")

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, a signal as a negative number, or raise TimeoutExpired."""
        if not select.select([self._connection], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
        status = -signal.SIGKILL if self._killed else os.waitstatus_to_exitcode(self._answer()[1])
        self._connection.close()
        return status

    def kill(self) -> None:
        """End it, and its process group: the server does so when nobody waits for it any more."""
        self._killed = True
        self._connection.shutdown(socket.SHUT_WR)

    def _answer(self) -> tuple[int, int]:
        data = client.receive(self._connection, client.ANSWER)
        assert len(data) == client.ANSWER, "the server is gone"
        return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little")

"""A warm start of rehearsals: a server that has imported torch (server.py), and who asks it."""

from __future__ import annotations

import marshal
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracehook.rehearsal import client

SOCKET = "TRACEHOOK_WARM"  # the variable that names the socket of a server that runs


class NoWarmStart(RuntimeError):
    """The server did not start; says why."""


class Warm:
    """A server that runs. :attr:`python` is an executable that stands in for this interpreter."""

    def __init__(self, environment: Mapping[str, str], preload: Sequence[str] = ()) -> None:
        """Start it with the environment of the rehearsal. `preload`: modules that its programs will want."""
        self._folder = tempfile.TemporaryDirectory(prefix="tracehook-warm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.socket = folder / "socket"
        self.python = python_of(self.socket)
        self.python.write_text(_script(self.socket), encoding="utf-8")
        self.python.chmod(0o700)
        code = "import sys; from tracehook.rehearsal import server; server.main(sys.argv[1], sys.argv[2:])"
        with (folder / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(self.socket), *preload],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            ready = self._process.stdout.readline()
            self._process.stdout.close()
            if ready != b"ready\n":
                self.close()
                errors.seek(0)
                said = errors.read().strip().splitlines()
                reason = said[-1] if said else f"its process ended with {self._process.returncode}"
                raise NoWarmStart(f"no warm start: {reason}")

    def close(self) -> None:
        """End the server, and what it still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def report(self) -> tuple[int, dict[str, int]]:
        """Return how many processes were forked, and why others were not, each reason with its count."""
        forked, cold = ask(self.socket, "report")
        return forked, cold

    def living(self, run: str) -> list[int]:
        """Return the processes of a run (`TRACEHOOK_WARM_RUN`) that have not ended."""
        return list(ask(self.socket, "living", run))


def python_of(socket: Path) -> Path:
    """Return the executable that stands in for the interpreter, of the server with that socket."""
    return socket.with_name("python")


def _script(socket: Path) -> str:
    parts = [sys.executable, "-I", "-S", client.__file__, str(socket)]
    return f'#!/bin/sh\nexec {shlex.join(parts)} "$@"\n'


def ask(socket: Path, *message: str) -> Any:
    """Send a request that is answered at once, and return the answer."""
    connection = client.connect(str(socket))
    client.send(connection, message, [])
    data = b""
    while part := connection.recv(65536):
        data += part
    connection.close()
    return marshal.loads(data)


def command(words: Sequence[str], python: Path, path: str | None) -> list[str]:
    """Return a command with `python` in the place of this interpreter, where it is Python or a script for it."""
    found = _find(words[0], path)
    if found is None:
        return list(words)
    if _is_this_interpreter(found):
        return [str(python), *words[1:]]
    with found.open("rb") as file:
        first = file.readline(512)
    interpreter = os.fsdecode(first[2:].strip())
    if first.startswith(b"#!") and " " not in interpreter and _is_this_interpreter(Path(interpreter)):
        return [str(python), str(found), *words[1:]]
    return list(words)


def _find(name: str, path: str | None) -> Path | None:
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def _is_this_interpreter(file: Path) -> bool:
    # Not resolved: an environment's python is a link to that of another.
    return file.parent.resolve() == Path(sys.executable).parent.resolve() and file.name.startswith("python")

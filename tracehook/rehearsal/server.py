"""Imports torch once and forks the processes of a rehearsal: ``server.main()``, started by ``warm.py``.

One thread. A client (client.py) sends what it was started with, and gets the number of its process and then how that
ended. When a client is gone, its process and what shares its process group are killed. Descriptor 0 is the lifeline:
when the other end is closed, the server ends, and what it forked with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import marshal
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from tracehook.rehearsal import program, values
from tracehook.rehearsal.client import COLD, ENDED, STARTED

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # of prctl
_MOST_DESCRIPTORS = 253  # that one message carries
_ENDING, _LONGEST_WAIT = 8, 60.0  # processes that take down their heap at one time; seconds that one waits for that
RUN = "TRACEHOOK_WARM_RUN"  # a name that the processes of a run share, by which `living` finds them


@dataclass
class StartRequest:
    """What a client was started with."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: bytes
    umask: int
    ignored: list[int]
    numbers: list[int]
    received: list[int]  # copies of the descriptors `numbers`


@dataclass
class Server:
    """See the module. `serve` returns in the parent when the lifeline is closed, in a child with its program."""

    listener: socket.socket
    clients: dict[int, socket.socket] = field(default_factory=dict)  # by process
    runs: dict[int, str] = field(default_factory=dict)  # of each session that was ever made
    forked: int = 0
    cold: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.environ = dict(os.environ)
        self.backends = list(entry_points(group="torch.backends"))

    def serve(self) -> list[str] | None:
        """Answer until the lifeline is closed."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        self.own = (wake, waker)
        while True:
            watched: list[int | socket.socket] = [0, wake, self.listener, *self.clients.values()]
            ready = select.select(watched, [], [])[0]
            if 0 in ready:
                self._kill_all()
                return None
            if wake in ready:
                os.read(wake, 4096)
            self._look_after_children()
            if self.listener in ready:
                connection = self.listener.accept()[0]
                arguments = self._answer(connection)
                if arguments is not None:
                    return arguments

    # --- requests ---

    def _answer(self, connection: socket.socket) -> list[str] | None:
        connection.settimeout(10)
        try:
            header, received = socket.recv_fds(connection, 4, _MOST_DESCRIPTORS)[:2]
            with connection.makefile("rb") as stream:
                verb, *fields = marshal.loads(stream.read(int.from_bytes(header, "little")))
        except (OSError, EOFError, ValueError):
            connection.close()  # the client was killed meanwhile
            return None
        if verb == "run":
            arguments, environ, cwd, umask, ignored, numbers = fields
            decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
            return self._start(connection, StartRequest(arguments, decoded, cwd, umask, ignored, numbers, received))
        told = self._living(*fields) if verb == "living" else (self.forked, dict(self.cold))
        with contextlib.suppress(OSError):
            connection.sendall(marshal.dumps(told))
        connection.close()
        return None

    def _start(self, connection: socket.socket, request: StartRequest) -> list[str] | None:
        """Fork the process of a request. Return its program in the child."""
        reason = self._reason_for_cold(request)
        if reason:
            self.cold[reason] += 1
            _tell(connection, COLD, 0)
            connection.close()
            for number in request.received:
                os.close(number)
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on a fork beside threads
            child = os.fork()
        if child == 0:
            connection.close()
            self._become(request)
            return request.arguments
        for number in request.received:
            os.close(number)
        self.forked += 1
        self.clients[child] = connection
        self.runs[child] = request.environ.get(RUN, "")
        _tell(connection, STARTED, child)
        return None

    def _reason_for_cold(self, request: StartRequest) -> str:
        try:
            os.chdir(request.cwd)  # a script's name is relative to it
        except OSError:
            return "a folder that is gone"
        if not program.is_for_us(request.arguments):
            return "other options of Python"
        return ", ".join(program.changed_too_late(self.environ, request.environ))

    def _living(self, run: str) -> list[int]:
        """Return the processes of a run that are left; those that no session tells the run of are of every run."""
        self._look_after_children()
        return [pid for pid, session in _descendants(os.getpid()).items() if self.runs.get(session, run) == run]

    # --- children ---

    def _look_after_children(self) -> None:
        for child, client in list(self.clients.items()):
            if _is_closed(client):
                _kill(child)
                client.close()
                del self.clients[child]
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return
                client = self.clients.pop(child, None)
                if client is not None:
                    _tell(client, ENDED, status)
                    client.close()

    def _kill_all(self) -> None:
        for child in list(self.clients):
            _kill(child)

    def _become(self, request: StartRequest) -> None:
        """In the child: take on what the request says, and nothing of the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for client in self.clients.values():
            client.close()
        # Whatever the program registers is called before, because it comes later.
        atexit.register(_wait_to_end, Path(self.listener.getsockname()).parent)
        self.listener.close()
        for number in self.own:
            os.close(number)
        os.setsid()
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
        for ignored in request.ignored:
            signal.signal(ignored, signal.SIG_IGN)
        _take_descriptors(request.numbers, request.received)
        os.umask(request.umask)
        os.environ.clear()
        os.environ.update(request.environ)
        time.tzset()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        _shift_addresses()
        _end_without_what_was_there()
        sys.orig_argv = [sys.executable, *request.arguments]
        program.reopen_standard_streams(program.is_unbuffered(request.arguments))
        program.Torch(self.environ, self.backends)


def _wait_to_end(folder: Path) -> None:
    """Let only some processes take down their heap at one time.

    Each copies some 200 MiB then, which it shared with the server until then; and the ranks of a job end together.
    """
    run = os.environ.get(RUN, "")  # those of another rehearsal at the same server may hang
    places = [folder / f"ending.{run}.{number}" for number in range(_ENDING)]
    latest = time.monotonic() + _LONGEST_WAIT
    with contextlib.suppress(OSError):  # the server has ended, and its folder is gone
        while time.monotonic() < latest:
            random.shuffle(places)
            for place in places:
                lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return  # and the end of the process closes it
                except BlockingIOError:
                    os.close(lock)
            time.sleep(0.02)


def _end_without_what_was_there() -> None:
    """Let the exit of this process leave out the destructors of the libraries that the server had loaded.

    Those of torch take a quarter of a second, in which its threads still run and find half of it gone.
    """
    process = ctypes.CDLL(None)
    process.on_exit(process.emu_nccl_end_process, None)


def _take_descriptors(numbers: list[int], received: list[int]) -> None:
    """Give the received descriptors the numbers that they have in the client; close 0, 1, 2 that it has not."""
    above = max(numbers, default=2) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, above) for number in received]
    for number in received:
        os.close(number)
    for number in {0, 1, 2} - set(numbers):
        os.close(number)
    for number, there in zip(numbers, moved, strict=True):
        os.dup2(there, number)
        os.close(there)


_kept: list[mmap.mmap] = []


def _shift_addresses() -> None:
    """Give each child other addresses of device memory, as processes have that were not forked from one."""
    size = random.SystemRandom().randrange(1, 1 << 12) << 30
    with contextlib.suppress(OSError, ValueError):  # a limit on addresses
        _kept.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0))


def _tell(client: socket.socket, kind: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it was killed meanwhile
        client.sendall(struct.pack("<II", kind, number))


def _is_closed(client: socket.socket) -> bool:
    """Whether the other end is gone: a client sends nothing more."""
    return bool(select.select([client], [], [], 0)[0])


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # it need not have made its group yet
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _descendants(root: int) -> dict[int, int]:
    """Return the processes below `root` that have not ended, each with its session."""
    parents, sessions = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, session = (
                path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            )
            if state not in "ZX":
                parents[int(path.parent.name)] = int(parent)
                sessions[int(path.parent.name)] = int(session)
    found: set[int] = set()
    while True:
        more = {pid for pid, parent in parents.items() if parent == root or parent in found} - found
        if not more:
            return {pid: sessions[pid] for pid in found}
        found |= more


def main(path: str, preload: list[str]) -> None:
    """Import what all programs need, say that we are ready, serve; in a child, run its program."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)  # whose parent has ended is still found below us
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a child does that for itself
    for name in ("torch", "torch.distributed", *preload):
        importlib.import_module(name)
    values.begin()  # what a child does not have to do again
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(path)
    listener.listen(128)
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    os.dup2(2, 1)
    arguments = Server(listener).serve()
    if arguments is not None:
        program.run(arguments)

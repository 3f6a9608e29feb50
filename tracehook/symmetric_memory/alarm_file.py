"""The file in shared memory in which the lookout of a host writes down the alarms that it read in the store.

When it is full the lookout begins it anew with the newest lines. The first line says how many alarms came before those.
A process that has not read them all reads what it misses in the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import zlib
from collections.abc import Iterator

from tracehook.symmetric_memory import hosts, leftovers
from tracehook.symmetric_memory.leftovers import MARK

MOST_BYTES = 2**20
QUIET = 3.0  # seconds without a sign of life from a lookout after which others look themselves
NAMED = 60.0  # seconds that the file keeps its name, so that the processes of a job that start together find it
PREFIX = f"{hosts.PREFIX}alarms-"
_HEAD = len(MARK) + 35


class AlarmFile:
    """A first line, and one for each alarm: a checksum and the text. Whoever holds the lock is the lookout.

    A file that cannot be used is closed, and then this process is its own lookout: nothing here raises.
    """

    def __init__(self, name: str) -> None:
        host = hosts.own_host()
        digest = hashlib.sha256(f"{name} {host}".encode()).hexdigest()
        self._path = hosts.SHARED_MEMORY / f"{PREFIX}{digest[:32]}"
        self.count = 0  # alarms up to the last line that was read or written
        self._head = b""  # the first line, unlike that of any other beginning
        self._end = _HEAD  # where those lines end
        self._is_locked = False
        self._sign = 0
        self._since = self._opened = time.monotonic()
        self._file = -1
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600) if host else -1

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._file >= 0

    def lock(self) -> bool:
        """Tell whether this process is the lookout, which it becomes if no other one is."""
        with self._closing():
            try:
                if self.is_open and not self._is_locked:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._is_locked = True
                    leftovers.remove()
            except BlockingIOError:
                return False
        return True

    def unlock(self) -> None:
        """Let another process be the lookout."""
        with self._closing():
            if self._is_locked:
                self._is_locked = False
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def read(self) -> list[tuple[int, bytes]]:
        """Return number and text of each line that is new."""
        found: list[tuple[int, bytes]] = []
        with self._closing():
            if not self._has_head():
                return found
            size = os.fstat(self._file).st_size
            lines = os.pread(self._file, size - self._end, self._end).split(b"\n")[:-1] if size > self._end else []
            if self._first_line() != self._head:  # begun anew meanwhile: these may be other lines
                return found
            for line in lines:
                if line != _line(line[9:])[:-1]:  # half of one, and the next lookout writes over it
                    break
                self.count += 1
                self._end += len(line) + 1
                found.append((self.count, line[9:]))
            if self._is_locked and size > self._end:
                os.ftruncate(self._file, self._end)  # the lookout before died in the middle of a line
        return found

    def append(self, text: bytes) -> None:
        """Add a line. Only the lookout does, when it has read all."""
        with self._closing():
            if self.is_open:
                line = _line(text)
                if self._end + len(line) > MOST_BYTES:
                    self._begin_anew()
                if self._end + len(line) > MOST_BYTES:
                    raise OSError("no space left")
                self._write(line, self._end)
                self.count += 1
                self._end += len(line)

    def give_sign(self) -> None:
        """Show that the lookout has looked. Only the lookout does."""
        with self._closing():
            if self.is_open:
                now = time.time_ns()  # finer than what the kernel would take
                os.utime(self._file, ns=(now, now))
                # So that a job that is killed later leaves no file. What starts later has a lookout of its own.
                if time.monotonic() >= self._opened + NAMED:
                    self._remove_name()

    def is_quiet(self) -> bool:
        """Tell whether the lookout has shown nothing for some time."""
        with self._closing():
            if self.is_open:
                sign, now = os.fstat(self._file).st_mtime_ns, time.monotonic()
                if sign != self._sign:
                    self._sign, self._since = sign, now
                return now - self._since >= QUIET
        return True

    def has_more(self) -> bool:
        """Tell whether there are lines that were not read."""
        with self._closing():
            return self.is_open and os.fstat(self._file).st_size not in (0, self._end)
        return False

    def close(self) -> None:
        """Use it no more, and leave no name. Those that have it open go on with it."""
        self.unlock()  # closing is not enough if a child has it open, too
        if self.is_open:
            self._remove_name()
        self.forget()

    def forget(self) -> None:
        """Use it no more."""
        file, self._file, self._is_locked = self._file, -1, False
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)

    def _first_line(self) -> bytes:
        line = os.pread(self._file, _HEAD, 0)
        return line if line[len(MARK) :] == _line(line[len(MARK) + 9 : -1]) else b""

    def _has_head(self) -> bool:
        """Go on where the file begins, if it was begun anew; tell whether it has begun."""
        head = self._first_line() if self.is_open else b""
        if not head and self.is_open and self._is_locked:  # nobody has begun, or the lookout before died in doing so
            self._head = b""
            self._begin_anew()
        elif head and head != self._head:
            self._head, self._end = head, _HEAD
            self.count = int(head[len(MARK) + 9 :].split()[0], 16)
        return bool(head)

    def _begin_anew(self) -> None:
        """Begin with the newest lines, up to half of what there may be. Only the lookout does."""
        lines = os.pread(self._file, self._end - _HEAD, _HEAD).splitlines(keepends=True) if self._head else []
        first, size = len(lines), 0
        while first and size + len(lines[first - 1]) <= MOST_BYTES // 2:
            first -= 1
            size += len(lines[first])
        before = self.count - (len(lines) - first)
        self._head = MARK + _line(b"%016x %b" % (before, os.urandom(4).hex().encode()))
        self._end = _HEAD + size
        os.ftruncate(self._file, 0)  # a reader that looks now finds no beginning
        self._write(self._head + b"".join(lines[first:]), 0)

    def _write(self, data: bytes, at: int) -> None:
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError("no space left")

    def _remove_name(self) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                self._path.unlink()

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.close()


def _line(text: bytes) -> bytes:
    text = text.replace(b"\n", b" ")  # between the parts of JSON, where one is as good as the other
    return b"%08x %b\n" % (zlib.crc32(text), text)

"""One process's log as files with a bound: parts, of which the oldest are thrown away.

A part begins with a checkpoint: the first line of the log, with its number, and the lines of what lives
(:class:`tracehook.log.living.Living`). So what is left of a log still says what every later event is about.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tracehook.log import clock
from tracehook.log.bound import NO_BOUND, Bound
from tracehook.log.encoding import dumps
from tracehook.log.file_name import new_file, new_name_of, opened, part_name
from tracehook.log.living import Living
from tracehook.log.text import in_bytes

_PARTS: Final = 8  # that a log with few living things has
_SLACK: Final = 64 << 10  # a file takes whole blocks of the disk, and its folder some


class NoRoom(OSError):
    """The lines of what lives do not fit into the bound."""


def now() -> str:
    """Return the wall time as logs have it."""
    return datetime.fromtimestamp(clock.time(), UTC).isoformat(timespec="microseconds")


def _inode_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class Parts:
    """A file to append lines to, unbuffered: what was written survives a kill. For the log's thread.

    `descriptor` is that of `path`, open to append to; without it the file is made. Raises OSError rather than write
    half a line.
    """

    def __init__(
        self,
        path: Path,
        descriptor: int | None,
        bound: Bound = NO_BOUND,
        clock: Callable[[], int] = clock.monotonic_ns,
    ) -> None:
        self.path = path
        self.number = 1
        self.descriptor = new_file(path) if descriptor is None else descriptor
        self._inode = _inode_of(self.descriptor)
        self._limit = bound.limit
        self._clock = clock  # of the events
        self._most = self._share(0)
        self._size = 0
        self._gone = 0  # bytes of the parts before this one
        self._begin: Mapping[str, Any] = {}
        self._last = b""
        self._last_seq = 0
        self._last_t_ns = 0  # of lines without a number
        self._living = None if bound.limit is None else Living()
        self._closed: deque[tuple[Path, int]] = deque()  # parts before this one, with their bytes

    @property
    def written(self) -> int:
        """Bytes of all parts that there ever were."""
        return self._gone + self._size

    def begin(self, fields: Mapping[str, Any]) -> None:
        """Write the first line of the log."""
        self._begin = fields
        self.write(dumps(fields) + b"\n")

    def write(self, line: bytes) -> None:
        """Write a line, into a new part if this one is full."""
        self._find_again()
        if self._size + len(line) > self._most and self._size > 0:
            self.rotate()
        self._write(self.descriptor, line)
        self._size += len(line)
        self._last = line

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def remember(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take note of the event of the line that was written last."""
        if self._living is not None:
            self._living.hear(event, fields, self._last)
            if "seq" in fields:
                self._last_seq = fields["seq"]
            else:
                self._last_t_ns = fields["t_ns"]

    def rotate(self) -> None:
        """Begin a new part; before, throw away as many of the oldest as it may need room. Raises OSError.

        While the program has no descriptor left, this part goes on up to the bound: others of its files may be closed.
        """
        living, limit = self._living, self._limit
        if living is None or limit is None:
            return
        if living.nbytes > limit // 8:
            living.shed()
        self._most = self._share(living.nbytes)
        if 2 * living.nbytes > self._most:
            raise NoRoom(
                "SYMM_REGISTER_LOG_LIMIT is too small, set more: the lines of what lives take "
                f"{in_bytes(living.nbytes)}"
            )
        path = part_name(self.path, self.number + 1)
        try:
            fd = new_file(new_name_of(path))
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE) or self._size > limit - 2 * _SLACK:
                raise
            return
        self._closed.append((self.path, self._size))
        self._gone += self._size
        self.number += 1
        try:
            while self._closed and sum(size for _, size in self._closed) + self._most > limit - _SLACK:
                self._closed.popleft()[0].unlink(missing_ok=True)
            size = self._write_head(fd, living)
            new_name_of(path).rename(path)  # so a part that has its name has its whole checkpoint
        except OSError:
            os.close(fd)
            new_name_of(path).unlink(missing_ok=True)
            raise
        os.close(self.descriptor)
        self.descriptor, self._inode, self._size, self.path = fd, _inode_of(fd), size, path

    def _write_head(self, fd: int, living: Living) -> int:
        """Write the checkpoint that a part begins with; return its bytes."""
        first = {
            **self._begin,
            "part": self.number,
            "part_t_ns": self._clock(),
            "part_time": now(),
            "from_seq": self._last_seq + 1,
            "after_t_ns": self._last_t_ns,
            "windows_gone": {str(comm): count for comm, count in living.windows_gone.items()},
            "placements_gone": sorted(living.placements_gone),
        }
        text = b"".join((dumps(first), b"\n", *living))
        self._write(fd, text)
        return len(text)

    def _share(self, living: int) -> int:
        """Return how many bytes a part may have: enough for what lives, and for as much news."""
        if self._limit is None:
            return 1 << 62
        return min(max(self._limit // _PARTS, 2 * living + _SLACK), (self._limit - _SLACK) // 2)

    def _find_again(self) -> None:
        """Open the file anew if the program has closed our descriptor, and has perhaps another file of the number."""
        with contextlib.suppress(OSError):
            if _inode_of(self.descriptor) == self._inode:
                return
        fd = opened(self.path)
        if _inode_of(fd) != self._inode:
            os.close(fd)
            raise OSError("another file has its name")
        self.descriptor = fd

    @staticmethod
    def _write(fd: int, data: bytes) -> None:
        """Write all of `data`; on a full disk the second, empty attempt is what raises."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

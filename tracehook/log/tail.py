"""One process's log that grows, file by file: its new lines, each once."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tracehook.log.lines import LONGEST_LINE, Event, is_repeated, parse_begin, parse_line

CHUNK: Final = 1 << 18
_HEAD: Final = 128  # bytes; a log's first line has in these when it was begun


class Tail:
    """The lines that were added to a file. Only whole ones: the rest of a torn one is waited for.

    The file is open only while it is read, because a job has more files than a process may have open.
    """

    def __init__(self, path: Path, status: os.stat_result) -> None:
        self.path = path
        self.begin: Event | None = None  # the first line, once somebody has read it
        self._identity = (status.st_dev, status.st_ino)
        self._size = status.st_size
        self.changed = status.st_mtime
        self._offset = 0
        self._head = b""
        self._torn = b""
        self._too_long = False

    def replaced(self, status: os.stat_result) -> bool:
        """Whether this is another file than the one that was read so far, or one that was cut. Notes its size."""
        self._size = status.st_size
        return (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset

    @property
    def unread(self) -> int:
        """Bytes that were there at the last look and were not read."""
        return max(0, self._size - self._offset)

    def read(self, limit: int = CHUNK) -> list[bytes | None] | None:
        """Return the lines of the next `limit` bytes; an item is None if it is longer than any event can be.

        Returns None if the file is not the one that was read before.
        """
        # Not blocking: should somebody have put a pipe here since the look, nobody may write to it.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if self.replaced(status) or not stat.S_ISREG(status.st_mode):
                return None
            # A new file may have the number of one that was removed.
            if self._head and os.pread(fd, len(self._head), 0) != self._head:
                return None
            data = os.pread(fd, limit, self._offset)
        finally:
            os.close(fd)
        if self._offset < _HEAD:
            self._head = (self._head + data)[:_HEAD]
        self._offset += len(data)
        if not data:
            self.pause()
        return self._split(data)

    def pause(self) -> None:
        """Leave the rest of this file to the next look."""
        self._size = self._offset

    def _split(self, data: bytes) -> list[bytes | None]:
        first, newline, rest = data.partition(b"\n")
        if not newline:
            self._torn = b"" if self._too_long else self._torn + first
            self._too_long = self._too_long or len(self._torn) > LONGEST_LINE
            return []
        lines: list[bytes | None] = [None if self._too_long else self._torn + first]
        *more, self._torn = rest.split(b"\n")
        self._too_long = False
        return lines + more


class PartedTail:
    """The lines that were added to the parts of a log. Of a later part those of its checkpoint are left out.

    `begin` is the first line of the part that was read first, once somebody has read it.
    """

    def __init__(self) -> None:
        self.begin: Event | None = None
        self._parts: dict[int, Tail] = {}  # that are there, or were being read
        self._repeats: set[int] = set()  # of these: whose checkpoint is not read to its end

    @property
    def changed(self) -> float:
        """When the newest part was changed, in seconds since 1970."""
        return max(tail.changed for tail in self._parts.values())

    @property
    def unread(self) -> int:
        """Bytes that were there at the last look and were not read."""
        return sum(tail.unread for tail in self._parts.values())

    def see(self, found: Mapping[int, tuple[str, os.stat_result]]) -> bool:
        """Note which parts are there; return False if one is another file than before."""
        if self._parts.keys() - found.keys():
            self._parts = {number: tail for number, tail in self._parts.items() if number in found}
        for number, (path, status) in sorted(found.items()):
            if number in self._parts:
                if self._parts[number].replaced(status):
                    return False
                continue
            if self.begin is not None or self._parts:
                self._repeats.add(number)
            self._parts[number] = Tail(Path(path), status)
        return True

    def read(self, limit: int = CHUNK) -> list[bytes | None] | None:
        """Return the lines of the next `limit` bytes, of the oldest part that has some; None if it was replaced.

        An item is None if it is longer than any event can be. Raises LogError if a part begins as no log does.
        """
        for number, tail in sorted(self._parts.items()):
            if not tail.unread:
                continue
            try:
                lines = tail.read(limit)
            except FileNotFoundError:  # it was thrown away meanwhile
                tail.pause()
                continue
            return self._without_repeats(number, tail, lines) if lines and number in self._repeats else lines
        return []

    def pause(self) -> None:
        """Leave the rest to the next look."""
        for tail in self._parts.values():
            tail.pause()

    def _without_repeats(self, number: int, tail: Tail, lines: list[bytes | None]) -> list[bytes | None]:
        if tail.begin is None:
            tail.begin = parse_begin(tail.path.name, lines.pop(0))
        while lines:
            event = None if lines[0] is None else parse_line(lines[0])
            if event is None or not is_repeated(event, tail.begin):
                self._repeats.discard(number)
                break
            lines.pop(0)
        return lines

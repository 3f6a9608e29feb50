"""Logs that are being written: the new lines of each, once, and what is new in a directory since the last look."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tracehook.log.file_name import part_of, stacks_of, stem_of
from tracehook.log.folders import folders_in
from tracehook.log.lines import LONGEST_LINE, Event, LogError, is_repeated, parse_begin, parse_line
from tracehook.log.ring import RingError, RingHeader, read_heads, read_slots
from tracehook.log.ring_place import named_by

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


class GrowingDirectory:
    """The logs of a directory as of the last looks, by the name of their first file. Reads what was added.

    A look that is told to stop is gone on with by the next one: so it takes no longer where there are very many logs,
    or where each is slow to ask for. No file is open between two calls.

    The name of a log in a folder of the directory begins with that folder.

    Packed logs and rings without a log are left out: neither grows. A log that was replaced is another
    :class:`PartedTail`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tails: dict[str, PartedTail] = {}
        self.skipped: dict[str, str] = {}  # files that are no logs of ours, and why
        self._rings: dict[str, set[str]] = {}  # their stems, by folder
        self._logs: dict[str, set[str]] = {}  # their names, by folder
        self._foreign: set[str] = set()  # read on only to see whether they are replaced
        self._queue: OrderedDict[str, None] = OrderedDict()  # those that have lines which nobody has read yet
        self._round: Iterator[str] | None = None

    def is_unfinished(self, name: str) -> bool:
        """Whether a log has lines which a look found and nobody has read yet."""
        return name in self._queue

    @property
    def behind(self) -> int:
        """The bytes of such lines."""
        return sum(self.tails[name].unread for name in self._queue)

    @property
    def is_round(self) -> bool:
        """Whether the last look came to its end: all logs were looked at."""
        return self._round is None

    def look(self, goes_on: Callable[[], bool] = lambda: True) -> list[str]:
        """Look at one log after the other, and queue those that have grown; return the names of those looked at.

        Begins where the last look was stopped, or with the first one, and ends with the last one or once `goes_on`
        says no.

        A directory that is not there holds no logs. Raises OSError if it cannot be read, or is none.
        """
        seen = []
        self._round = self._round or self._visits()
        for name in self._round:
            seen.append(name)
            if not goes_on():
                break
        else:
            self._round = None
        return seen

    def _visits(self) -> Iterator[str]:
        """Look at each log of each folder, and yield its name then."""
        folders = []
        with contextlib.suppress(FileNotFoundError):
            folders = folders_in(self.path)
        earlier = ["" if folder == self.path else f"{folder.name}/" for folder in folders]
        for before in self._logs.keys() - set(earlier):
            self._keep(before, {})
        for before, folder in zip(earlier, folders, strict=True):
            found: dict[str, dict[int, os.DirEntry[str]]] = {}
            with contextlib.suppress(FileNotFoundError):  # it may go while we look
                found = self._look_into(before, folder)
            self._keep(before, found)
            for name, parts in found.items():
                if self._has_grown(name, parts) and name not in self._queue:
                    self._queue[name] = None
                    # What was never read comes first: some of each log says more than all of one.
                    self._queue.move_to_end(name, last=self.tails[name].begin is not None)
                yield name

    def _look_into(self, before: str, folder: Path) -> dict[str, dict[int, os.DirEntry[str]]]:
        found: dict[str, dict[int, os.DirEntry[str]]] = {}
        rings = self._rings[before] = set()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".jsonl"):
                    found.setdefault(f"{before}{stem_of(entry.name)}.jsonl", {})[part_of(entry.name)] = entry
                elif entry.name.endswith(".ring"):
                    rings.add(f"{before}{stem_of(entry.name)}")
        return found

    def _keep(self, before: str, found: Mapping[str, object]) -> None:
        """Forget the logs of a folder that are not there any more."""
        for name in self._logs.get(before, set()) - found.keys():
            self._remove(name)
        if found:
            self._logs[before] = set(found)
        else:
            self._logs.pop(before, None)
            self._rings.pop(before, None)

    def read_next(self) -> tuple[str, list[bytes | None]] | None:
        """Read some of the next log in the queue; return its name and its new lines, None if the queue is empty.

        The first line becomes the `begin` of the log's tail, and is not among those that are returned. An item is None
        if it is longer than any event can be.
        """
        while self._queue:
            name, _ = self._queue.popitem(last=False)
            if name not in self.tails:
                continue
            lines = self._read(name)
            if name in self.tails and self.tails[name].unread:
                self._queue[name] = None
            return name, lines
        return None

    def ring_heads(self, name: str) -> tuple[RingHeader, list[bytes]] | None:
        """Return what the ring of a log says of itself, and the heads of its slots of calls.

        Returns None if there is no ring that can be read.
        """
        path = self.ring(name)
        with contextlib.suppress(OSError, RingError):
            return None if path is None else read_heads(path)
        return None

    def ring_slots(self, name: str) -> list[bytes]:
        """Return the slots of calls in the ring of a log; none if it cannot be read."""
        path = self.ring(name)
        with contextlib.suppress(OSError, RingError):
            return [] if path is None else read_slots(path)
        return []

    def stacks(self, name: str) -> Path:
        """Return where the stacks of a process lie, if it wrote any."""
        return stacks_of(self.path / name)

    def ring(self, name: str) -> str | Path | None:
        """Return the ring of a log, None if it is not here."""
        stem = name.removesuffix(".jsonl")
        if stem in self._rings.get(name[: name.rfind("/") + 1], ()):
            return f"{self.path}/{stem}.ring"
        tail = self.tails.get(name)
        return named_by((tail and tail.begin) or {})

    def _has_grown(self, name: str, parts: Mapping[int, os.DirEntry[str]]) -> bool:
        found = {}
        for number, entry in parts.items():
            try:
                found[number] = (entry.path, entry.stat())
            except FileNotFoundError:
                continue  # thrown away since we looked
            except OSError as problem:
                self.skipped[name] = problem.strerror or str(problem)
                return False
        tail = self.tails.get(name)
        if tail is None or not tail.see(found):
            self._remove(name)
            if not all(stat.S_ISREG(status.st_mode) for _, status in found.values()):
                self.skipped[name] = "not a regular file"
                return False
            tail = self.tails[name] = PartedTail()
            tail.see(found)
        return bool(tail.unread)

    def _remove(self, name: str) -> None:
        self._foreign.discard(name)
        self.tails.pop(name, None)
        self.skipped.pop(name, None)

    def _read(self, name: str) -> list[bytes | None]:
        tail = self.tails[name]
        try:
            lines = tail.read()
            if lines is None:
                self._remove(name)  # and begin anew at the next look
                return []
            if name in self._foreign:
                return []
            if lines and tail.begin is None:
                tail.begin = parse_begin(name, lines.pop(0))
            self.skipped.pop(name, None)
        except LogError as problem:
            self._foreign.add(name)
            self.skipped[name] = str(problem)
        except OSError as problem:
            self.skipped[name] = problem.strerror or str(problem)
        else:
            return lines
        tail.pause()
        return []

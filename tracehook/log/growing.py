"""A directory of logs that are being written: what is new in it since the last look."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from tracehook.log.calls import SLOT_BYTES
from tracehook.log.file_name import part_of, stem_of
from tracehook.log.folders import folders_in
from tracehook.log.lines import LogError, parse_begin
from tracehook.log.parted_tail import PartedTail
from tracehook.log.ring import RingError, RingHeader, read_header, read_slots
from tracehook.log.ring_place import named_by


class GrowingDirectory:
    """The logs of a directory as of the last :meth:`look`, by the name of their first file. Reads what was added.

    The name of a log in a folder of the directory begins with that folder.

    Packed logs and rings without a log are left out: neither grows. A log that was replaced is another
    :class:`PartedTail`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tails: dict[str, PartedTail] = {}
        self.skipped: dict[str, str] = {}  # files that are no logs of ours, and why
        self._rings: set[str] = set()  # their stems
        self._foreign: set[str] = set()  # read on only to see whether they are replaced
        self._queue: deque[str] = deque()

    @property
    def unfinished(self) -> set[str]:
        """The logs that have lines which the last look found and nobody has read yet."""
        return set(self._queue)

    @property
    def behind(self) -> int:
        """The bytes of these."""
        return sum(self.tails[name].unread for name in self._queue)

    def look(self) -> None:
        """Note which logs there are, and queue those that have grown.

        A directory that is not there holds no logs. Raises OSError if it cannot be read, or is none.
        """
        self._rings.clear()
        found: dict[str, dict[int, os.DirEntry[str]]] = {}
        queued = self.unfinished
        with contextlib.suppress(FileNotFoundError):
            for folder in folders_in(self.path):
                with contextlib.suppress(FileNotFoundError):  # a folder of a host may go while we look
                    self._look_into(folder, found)
        for name, parts in found.items():
            if self._has_grown(name, parts) and name not in queued:
                self._queue.append(name)
        for name in (self.tails.keys() | self.skipped.keys()) - found.keys():
            self._remove(name)
        self._queue = deque(name for name in self._queue if name in self.tails)

    def _look_into(self, folder: Path, found: dict[str, dict[int, os.DirEntry[str]]]) -> None:
        # A folder of a host may go while we look. That the directory itself goes has an error of its own.
        before = "" if folder == self.path else f"{folder.name}/"
        with os.scandir(folder) as entries:
            for entry in entries:
                stem = f"{before}{stem_of(entry.name)}"
                if entry.name.endswith(".ring"):
                    self._rings.add(stem)
                elif entry.name.endswith(".jsonl"):
                    found.setdefault(f"{stem}.jsonl", {})[part_of(entry.name)] = entry

    def read_next(self) -> tuple[str, list[bytes | None]] | None:
        """Read some of the next log in the queue; return its name and its new lines, None if the queue is empty.

        The first line becomes the `begin` of the log's tail, and is not among those that are returned. An item is None
        if it is longer than any event can be.
        """
        if not self._queue:
            return None
        name = self._queue.popleft()
        lines = self._read(name)
        if name in self.tails and self.tails[name].unread:
            self._queue.append(name)
        return name, lines

    def ring_header(self, name: str) -> RingHeader | None:
        """Return what the ring of a log says of itself; None if there is none that can be read."""
        path = self._ring(name)
        with contextlib.suppress(OSError, RingError):
            return None if path is None else read_header(path)
        return None

    def ring_slots(self, name: str, most: int = SLOT_BYTES) -> list[bytes]:
        """Return the first `most` bytes of each slot of calls in the ring of a log; none if it cannot be read."""
        path = self._ring(name)
        with contextlib.suppress(OSError, RingError):
            return [] if path is None else read_slots(path, most)
        return []

    def _ring(self, name: str) -> Path | None:
        stem, tail = stem_of(name), self.tails.get(name)
        return self.path / f"{stem}.ring" if stem in self._rings else named_by((tail and tail.begin) or {})

    def _has_grown(self, name: str, parts: Mapping[int, os.DirEntry[str]]) -> bool:
        found = {}
        for number, entry in parts.items():
            try:
                found[number] = (Path(entry.path), entry.stat())
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

"""One process's log that grows, part by part: its new lines, each once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tracehook.log.lines import Event, is_repeated, parse_begin, parse_line
from tracehook.log.tail import CHUNK, Tail


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

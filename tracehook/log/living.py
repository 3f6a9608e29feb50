"""What a log must still tell when its oldest lines are thrown away: the lines of what lives, as they were written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final

from tracehook.log.tables import PROBLEMS, WARNINGS

_TROUBLES_KEPT: Final = 512  # lines of warnings, problems and calls that NCCL refused: the newest
_ENDED_KEPT: Final = 128  # lines that say what ended communicators were called for: the newest

Fields = Mapping[str, Any]
_Key = tuple[Hashable, ...]

# Of something that lives these say that it does: the last line of each kind is kept.
_BIRTHS: Final[Mapping[str, Callable[[Fields], _Key]]] = {
    "segment.alloc": lambda f: ("segment", f.get("device"), f.get("segment")),
    "segment.adopt": lambda f: ("segment", f.get("device"), f.get("segment")),
    "segment.map": lambda f: ("segment", f.get("device"), f.get("segment")),
    "pool.grow": lambda f: ("pool", f.get("device"), f.get("pool_segment")),
    "communicator.pending": lambda f: ("comm", f.get("comm_id")),
    "ipc.export": lambda f: ("export", f.get("comm"), f.get("peer"), f.get("generation")),
    "ipc.open": lambda f: ("open", f.get("peer_life"), f.get("generation")),
    "range.map": lambda f: ("range", f.get("device"), f.get("addr"), f.get("size")),
    "agreement.waits": lambda f: ("agreement", f.get("comm_id")),
}
_DEATHS: Final[Mapping[str, Callable[[Fields], _Key]]] = {
    "segment.free": _BIRTHS["segment.alloc"],
    "segment.unmap": _BIRTHS["segment.alloc"],
    "pool.shrink": _BIRTHS["pool.grow"],
    "communicator.retire": _BIRTHS["communicator.pending"],
    "communicator.abort": _BIRTHS["communicator.pending"],
    "ipc.release": _BIRTHS["ipc.export"],
    "ipc.close": _BIRTHS["ipc.open"],
    "range.unmap": _BIRTHS["range.map"],
    "agreement.waited": _BIRTHS["agreement.waits"],
}
# Nobody asks about these once they have passed.
_PASSING: Final = frozenset(("agreement.reached", "window.defer", "ledger.check", "log.summed"))


class Living:
    """The lines of what lives now, in the order in which they were written. For one thread.

    Besides births it keeps what happened to the living (the last registration and deregistration of a segment with a
    communicator), the newest warnings and problems, and what ended communicators were called for.

    `windows_gone` counts, for each communicator that lives, the tries to register a window that are not in the lines.
    `placements_gone` has the communicators whose first uses of windows are not in them.
    """

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}  # by their number, which grows
        self._number = 0
        self._at: dict[_Key, dict[_Key, int]] = {}  # of each that lives: its lines
        self._held: dict[_Key, set[_Key]] = {}  # by a segment or a communicator: registrations
        self._holders: dict[_Key, tuple[_Key, _Key]] = {}  # the same, the other way round
        self._troubles: deque[int] = deque()
        self._ended: deque[int] = deque()
        self._tries: dict[int, int] = {}  # lines of register.window: their communicators
        self.windows_gone = Counter[int]()
        self.placements_gone: set[int] = set()
        self.nbytes = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""
        return iter(self._lines.values())

    def hear(self, event: str, fields: Fields, line: bytes) -> None:
        """Take a line that was written into account."""
        comm = fields.get("comm_id")
        if fields.get("ok") is False or event in WARNINGS or event in PROBLEMS:
            self._keep_newest(self._troubles, line, _TROUBLES_KEPT)
        elif (key_of := _BIRTHS.get(event)) is not None:
            self._keep(key_of(fields), ("born",), line)
        elif (key_of := _DEATHS.get(event)) is not None:
            self._end(key_of(fields))
            if event.startswith("communicator."):
                self._end(("group", fields.get("comm")))
        elif event.startswith(("register.", "deregister.")) and event != "register.batch":
            self._registration(event, fields, line)
        elif event in ("communicator.calls", "communicator.paths"):
            self._keep_newest(self._ended, line, _ENDED_KEPT)
        elif event == "placement.first_use":
            if comm not in self.placements_gone:
                self._keep(("comm", comm), (event, self._number), line)
        elif event not in _PASSING:
            self._keep(_subject(event, fields), _kind(event, fields), line)
        if event == "register.window" and isinstance(comm, int):
            self._tries[self._number] = comm

    def shed(self) -> None:
        """Give up the first uses of windows, which may be many. The ranks' digests of them stay."""
        for key, lines in self._at.items():
            uses = [kind for kind in lines if kind[0] == "placement.first_use"]
            if uses and isinstance(key[1], int):
                self.placements_gone.add(key[1])
            for kind in uses:
                self._drop(lines.pop(kind))

    # --- what is kept ---

    def _registration(self, event: str, fields: Fields, line: bytes) -> None:
        kind = event.partition(".")[2]
        comm, memory = fields.get("comm_id"), fields.get("segment", fields.get("pool_segment", fields.get("addr")))
        key = (kind, comm, memory, fields.get("for_transfers", False))
        if event.startswith("register."):
            self._end(key)
            self._keep(key, ("made",), line)
            memory_key = ("segment" if kind == "local" else "pool", fields.get("device"), memory)
            self._holders[key] = (memory_key, ("comm", comm))
            for holder in self._holders[key]:
                self._held.setdefault(holder, set()).add(key)
        elif kind == "window":
            self._end(key)
        elif key in self._at:
            # Without both lines the segment would look as if nobody had ever registered it.
            self._keep(key, ("undone",), line)

    def _keep(self, key: _Key, kind: _Key, line: bytes) -> None:
        lines = self._at.setdefault(key, {})
        if (before := lines.get(kind)) is not None:
            self._drop(before)
        lines[kind] = self._add(line)

    def _end(self, key: _Key) -> None:
        for number in self._at.pop(key, {}).values():
            self._drop(number)
        for registration in self._held.pop(key, ()):
            self._end(registration)
        for holder in self._holders.pop(key, ()):
            self._held.get(holder, set()).discard(key)
        if key[0] == "comm" and isinstance(key[1], int):
            self.windows_gone.pop(key[1], None)
            self.placements_gone.discard(key[1])

    def _keep_newest(self, lines: deque[int], line: bytes, most: int) -> None:
        lines.append(self._add(line))
        if len(lines) > most:
            self._drop(lines.popleft())

    def _add(self, line: bytes) -> int:
        self._number += 1
        self._lines[self._number] = line
        self.nbytes += len(line)
        return self._number

    def _drop(self, number: int) -> None:
        self.nbytes -= len(self._lines.pop(number))
        if (comm := self._tries.pop(number, None)) is not None:
            self.windows_gone[comm] += 1


def _subject(event: str, fields: Fields) -> _Key:
    """Return whose line this is: it goes when that ends."""
    if event in ("segment.retire", "segment.reuse"):
        return ("pool", fields.get("device"), fields.get("pool_segment"))
    if isinstance(fields.get("comm_id"), int):
        return ("comm", fields["comm_id"])
    return ("group", fields.get("comm")) if event == "communicator.group" else ("process",)


def _kind(event: str, fields: Fields) -> _Key:
    """Return what is told of it: of several lines of one kind the last one is kept."""
    if event in ("segment.retire", "segment.reuse"):
        return ("use",)
    names = ("device", "comm", "group", "peer", "peer_life", "choice", "answer", "operation", "bucket")
    return (event, *(value if isinstance(value, int | str) else None for value in map(fields.get, names)))

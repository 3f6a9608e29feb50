"""Which group of torch stands behind each communicator, and which rank this process has: for the log and for messages.

Only torch knows, and to ask it is not free: `_comm_ptr` takes a mutex of the group, which an abort holds while it runs,
and keeps the interpreter's lock meanwhile. So a group is asked only if its ranks are those of a live communicator that
has no name yet; rarely; and never again once a communicator ended that was, or may have been, its own.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracehook.hook import group_names
from tracehook.hook.group_names import GroupName
from tracehook.log.journal import warn

MOST_TRIES = 8  # for one communicator, in about a minute; then no group of torch stands behind it
_FIRST = 0.5  # seconds between the first two tries; each later pause is twice as long
_RANK_PERIOD = 1.0  # seconds between two looks for the default group

Line = tuple[str, dict[str, Any]]

_known: dict[int, GroupName] = {}


def known(comm_id: int) -> GroupName | None:
    """Return the names of the group behind the live communicator with that number, as far as they were found."""
    return _known.get(comm_id)


@dataclass
class _Unnamed:
    """A live communicator of which it is not known whose it is."""

    comm: str
    rank: int | None
    ranks: int | None
    device: int | None
    ready: bool = False
    tries: int = 0
    due: float = 0.0

    def may_be_of(self, group: Any) -> bool:
        """Whether the communicator has as many ranks as `group`, and this process the same rank in both."""
        bound = group.bound_device_id
        return (
            self.ranks in (None, group.size())
            and self.rank in (None, group.rank())
            and (bound is None or self.device in (None, bound.index))
        )


class Namer:
    """Finds names. The log's thread calls all methods; `core` is the native module."""

    def __init__(self, core: Any, has_rank: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._clock = clock
        self._has_rank = has_rank
        self._rank_due = 0.0
        self._unnamed: dict[int, _Unnamed] = {}
        self._named: dict[int, weakref.ref[Any]] = {}
        self._shunned: weakref.WeakSet[Any] = weakref.WeakSet()  # groups that may be ending
        self._is_over = False
        _known.clear()

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event of a communicator, which is in the log by now."""
        number = fields["comm_id"]
        if event == "communicator.pending":
            ranks, device = fields.get("ranks"), fields.get("device")
            self._unnamed[number] = _Unnamed(fields["comm"], fields.get("comm_rank"), ranks, device)
        elif event == "communicator.ready" and number in self._unnamed:
            found = self._unnamed[number]
            found.ready, found.due = True, self._clock()
            found.rank, found.ranks = fields.get("comm_rank", found.rank), fields.get("ranks", found.ranks)
        elif event in ("communicator.retire", "communicator.abort"):
            _known.pop(number, None)
            group = self._named.pop(number, _nobody)()
            if group is not None:
                self._shunned.add(group)
            ended = self._unnamed.pop(number, None)
            if ended is not None and not self._is_over:
                self._shunned.update(group for group in _groups() if ended.may_be_of(group))

    def look(self) -> Iterator[Line]:
        """Yield the lines that the log gets now. Never raises."""
        if self._is_over:
            return
        try:
            now = self._clock()
            yield from self._rank(now)
            yield from self._names(now)
        except Exception as problem:  # torch's side of this is private, and the job comes first
            self._is_over = True
            warn(f"the log has no more names of groups, looking for them failed: {type(problem).__name__}: {problem}")

    def _rank(self, now: float) -> Iterator[Line]:
        if self._has_rank or now < self._rank_due:
            return
        self._rank_due = now + _RANK_PERIOD
        place = group_names.own_place()
        if place is not None:
            self._has_rank = True
            yield "rank.known", dict(zip(("rank", "world_size"), place, strict=True))

    def _names(self, now: float) -> Iterator[Line]:
        due = {number: one for number, one in self._unnamed.items() if one.ready and one.due <= now}
        if not due:
            return
        alive = {row["id"] for row in self._core.communicators()}
        ended = [one for number, one in self._unnamed.items() if number not in alive]
        others = [one for one in self._unnamed.values() if not one.ready] + ended
        due = {number: one for number, one in due.items() if number in alive}
        taken = {id(group()) for number, group in self._named.items()}
        for group in _groups():
            wanted = [one for number, one in due.items() if number in self._unnamed and one.may_be_of(group)]
            if not wanted or group in self._shunned or id(group) in taken:
                continue
            if any(one.may_be_of(group) for one in others):
                continue
            number = self._communicator_of(group, wanted[0].device)
            if number in self._unnamed:
                yield self._line(number, group)
        for number, one in due.items():
            one.tries += 1
            one.due = now + _FIRST * 2 ** (one.tries - 1)
            if one.tries >= MOST_TRIES:
                self._unnamed.pop(number, None)

    def _communicator_of(self, group: Any, device: int | None) -> int:
        from tracehook.hook.groups import nccl_backend

        backend = nccl_backend(group)
        pointer = _pointer_on(backend, device or 0) if backend is not None else 0
        found = self._core.find_communicator(pointer) if pointer else None
        return int(found.id) if found is not None and not found.dead else 0

    def _line(self, number: int, group: Any) -> Line:
        one, name = self._unnamed.pop(number), group_names.name_of(group)
        self._named[number] = weakref.ref(group)
        _known[number] = name
        fields = {"group": name.name, "desc": name.desc, "members": list(name.members)}
        return "communicator.group", {"comm": one.comm, "comm_id": number, **fields}


def _groups() -> list[Any]:
    return group_names.all_groups()


def _pointer_on(backend: Any, device: int) -> int:
    from tracehook.hook.groups import pointer_on

    return pointer_on(backend, device)


def _nobody() -> None:
    """What stands for the reference to a group where there is none."""

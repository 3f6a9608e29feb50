"""Which group of torch stands behind each communicator, and which rank this process has: for the log and for messages.

Only torch knows, and it must not be asked: `_comm_ptr` waits for a mutex of the communicator, and keeps the
interpreter's lock meanwhile. A thread that registers a memory pool holds that mutex, and may wait for the interpreter.
So the number of ranks, the rank and the order of birth decide; where they leave a doubt, there is no name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracehook.hook import group_names
from tracehook.hook.group_names import GroupName
from tracehook.log import clock
from tracehook.log.stderr import warn
from tracehook.log.text import many, ranks_in_words

MOST_TRIES = 8  # for one communicator, in about a minute; then no group of torch stands behind it
_FIRST = 0.5  # seconds between the first two tries; each later pause is twice as long
_STILL_MADE = 60.0  # seconds in which torch may enter the ranks of a group, which it does when the communicator is made
_UNUSED = 5.0  # seconds without a communicator after which the log tells the ranks of a group of NCCL
_TOLD = -1.0
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
    since: float = 0.0  # when it was ready

    def may_be_of(self, group: Any) -> bool:
        """Whether the communicator has as many ranks as `group`, and this process the same rank in both."""
        bound = group.bound_device_id
        return (
            self.ranks in (None, group.size())
            and self.rank in (None, group.rank())
            and (bound is None or self.device in (None, bound.index))
        )

    def is_like(self, other: _Unnamed) -> bool:
        """Whether both have as many ranks, and this process one rank in both."""
        return (self.ranks, self.rank, self.device) == (other.ranks, other.rank, other.device)


class Namer:
    """Finds names. The log's thread calls all methods; `core` is the native module."""

    def __init__(self, core: Any, has_rank: bool, clock: Callable[[], float] = clock.monotonic) -> None:
        self._core = core
        self._clock = clock
        self._has_rank = has_rank
        self._rank_due = self._others_due = 0.0
        # Since when there are groups that have no communicator, as far as is known.
        self._others: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._unnamed: dict[int, _Unnamed] = {}
        self._seen: dict[int, _Unnamed] = {}  # all communicators
        self._named: dict[int, weakref.ref[Any]] = {}
        self._shunned: weakref.WeakSet[Any] = weakref.WeakSet()  # groups that may be ending
        self._is_over = False
        _known.clear()

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event. Those of communicators matter."""
        number = fields.get("comm_id", 0)
        if event == "communicator.pending":
            ranks, device = fields.get("ranks"), fields.get("device")
            self._unnamed[number] = _Unnamed(fields["comm"], fields.get("comm_rank"), ranks, device)
            self._rank_due = 0.0  # there is a group now, which may end soon
            self._seen[number] = self._unnamed[number]
        elif event == "communicator.ready" and number in self._unnamed:
            found = self._unnamed[number]
            found.ready, found.due = True, self._clock()
            found.since = found.due
            found.rank, found.ranks = fields.get("comm_rank", found.rank), fields.get("ranks", found.ranks)
        elif event in ("communicator.retire", "communicator.abort"):
            _known.pop(number, None)
            group = self._named.pop(number, _nobody)()
            if group is not None:
                self._shunned.add(group)
            self._seen.pop(number, None)
            ended = self._unnamed.pop(number, None)
            if ended is not None and not self._is_over:
                self._shunned.update(group for group in _groups() if ended.may_be_of(group))

    def look(self, asked: bool = False) -> Iterator[Line]:
        """Yield the lines that the log gets now; with `asked` also for what is not due. Never raises."""
        if self._is_over:
            return
        try:
            now = self._clock()
            yield from self._rank(now)
            yield from self._told_others(now, asked)
            yield from self._names(now, asked)
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

    def _told_others(self, now: float, asked: bool) -> Iterator[Line]:
        """Tell of groups without a communicator: a rank that waits in one waits for its members alone."""
        if now < self._others_due and not asked:
            return
        self._others_due = now + _RANK_PERIOD
        _, ranks = group_names.own_place() or (0, 0)
        named = {id(group()) for group in self._named.values()}
        for group, backend in group_names.with_backends():
            since = self._others.setdefault(group, now)
            if since == _TOLD or id(group) in named or ("nccl" in backend and now < since + _UNUSED):
                continue
            name = group_names.name_of(group)
            if 1 < len(name.members) < ranks:
                self._others[group] = _TOLD
                fields = {"group": name.name, "desc": name.desc, "members": list(name.members), "backend": backend}
                yield "group.known", fields

    def _names(self, now: float, asked: bool) -> Iterator[Line]:
        due = {number: one for number, one in self._unnamed.items() if one.ready and (asked or one.due <= now)}
        if not due:
            return
        alive = sorted(row["id"] for row in self._core.communicators())
        for number in list(due):
            if number in alive and number in self._unnamed:
                group = self._group_of(number, alive)
                if group is not None:
                    name = group_names.name_of(group)
                    if not name.members and now < due[number].since + _STILL_MADE:
                        del due[number]  # the next look may know them
                    else:
                        yield self._line(number, group, name)
        for number, one in due.items():
            if one.due > now:
                continue  # a program that asks often has no fewer tries
            one.tries += 1
            one.due = now + _FIRST * 2 ** (one.tries - 1)
            if one.tries >= MOST_TRIES:
                self._unnamed.pop(number, None)

    def _group_of(self, number: int, alive: list[int]) -> Any | None:
        """Return the group behind a communicator, if only one can be, or if all were made in one order.

        A group that is bound to a device makes its communicator at once, so the order of both is the same.
        """
        one = self._seen[number]
        seen = [other for other in alive if other in self._seen]
        if (in_order := self._with_fewer_ranks(seen)) is not None:
            return in_order[seen.index(number)]
        alike = [other for other in seen if self._seen[other].is_like(one)]
        groups = [group for group in _groups() if one.may_be_of(group)]
        is_certain = len(groups) == 1 or all(group.bound_device_id is not None for group in groups)
        if len(groups) != len(alike) or not is_certain or any(group in self._shunned for group in groups):
            return None
        return groups[alike.index(number)]

    def _with_fewer_ranks(self, seen: list[int]) -> list[Any] | None:
        """Return the groups of all communicators if some of these leave ranks of their groups out.

        That is certain only where each group is whole, is bound to a device, and has a communicator.
        """
        groups = _groups()
        sizes = [(self._seen[number].ranks or 0, group.size()) for number, group in zip(seen, groups, strict=False)]
        if len(seen) != len(groups) or not any(0 < ranks < size for ranks, size in sizes):
            return None
        is_whole = all(
            group.bound_device_id is not None and group not in self._shunned and group_names.name_of(group).members
            for group in groups
        )
        return groups if is_whole and all(0 < ranks <= size for ranks, size in sizes) else None

    def _line(self, number: int, group: Any, name: GroupName) -> Line:
        one = self._unnamed.pop(number)
        self._named[number] = weakref.ref(group)
        _known[number] = name
        if one.ranks is not None and one.ranks < group.size():
            members = f" ({ranks_in_words(name.members)})" if name.members else ""
            place = group_names.own_place()
            where = f"on rank {place[0]} " if place is not None else ""
            warn(
                f"{where}group {name.label}{members} has a communicator of {many(one.ranks, 'rank')}: the ranks did "
                "not call new_group in one order, or not with the same ranks, so collectives of this group leave ranks "
                "out; call new_group on all ranks of the job, in one order, with the same lists of ranks"
            )
        fields = {"group": name.name, "desc": name.desc, "members": list(name.members)}
        return "communicator.group", {"comm": one.comm, "comm_id": number, **fields}


def _groups() -> list[Any]:
    return group_names.all_groups()


def _nobody() -> None:
    """What stands for the reference to a group where there is none."""

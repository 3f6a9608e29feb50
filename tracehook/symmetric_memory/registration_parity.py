"""Who has no local registrations any more says so, and the ranks that have theirs hear it.

A rank whose registrations with a communicator failed, or were switched off, goes on without them. NCCL cannot tell, and
where it uses registrations (NVLS) it may wait for ever for ranks that differ. So such a rank posts a notice where all
look for alarms. One and the same change on all ranks is no difference: each counts itself at a key of the communicator,
and posts only if the others have not done so a moment after its last change. What a rank hears counts a moment later
still: the other may have changed with it since, and says so by then. While nothing changes nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.distributed import Store

from tracehook import _core
from tracehook.agreement.rank_names import of_group
from tracehook.hook import namer
from tracehook.log import clock
from tracehook.log.stderr import warn
from tracehook.log.tables import KINDS

CHANNEL = "registrations"
GRACE = 3.0  # seconds in which all ranks make the same change
HEARD = 3.0  # seconds until what a rank posts has been read
FORGOTTEN = 300.0  # seconds after which a notice about a communicator that this process never had is dropped


class Notice(NamedTuple):
    """What a rank says of itself."""

    key: str  # of the communicator
    rank: int  # in it
    who: str
    about: str  # what messages call the communicator
    registered: bool
    why: str


class _Mine:
    """One communicator of this process."""

    def __init__(self) -> None:
        self.registered = True
        self.changed: float | None = None  # since when the others may not know
        self.told = True  # what the others heard last


class _Theirs:
    """What another rank said last."""

    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        self.heard = clock.monotonic()
        self.is_said = False


class Registrations:
    """Compares, for one store, who registers segments with which communicator. Only the watchdog calls it.

    `switched` tells when this process was switched on or off last, by the monotonic clock.
    """

    def __init__(self, switched: Callable[[], float]) -> None:
        self._switched = switched
        self._mine: dict[str, _Mine] = {}
        self._theirs: dict[tuple[str, int], _Theirs] = {}

    def step(self, store: Store) -> list[Notice]:
        """Return what to tell the others; say what was heard from ranks that differ from this one."""
        rows = {f"{row['key']:016x}": row for row in _core.communicators() if row["size"] > 1}
        self._mine = {key: mine for key, mine in self._mine.items() if key in rows}
        self._say(rows)
        return list(self._changes(store, rows))

    def hear(self, told: Sequence[Any]) -> None:
        """Take what a rank, perhaps this one, says of itself."""
        notice = Notice(*told)
        known = self._theirs.get((notice.key, notice.rank))
        if known is not None and known.notice == notice:
            known.heard = clock.monotonic()  # _say() said the notice already, or says it soon
        else:
            self._theirs[notice.key, notice.rank] = _Theirs(notice)

    def _changes(self, store: Store, rows: dict[str, dict[str, Any]]) -> Iterator[Notice]:
        now = clock.monotonic()
        for key, row in rows.items():
            if KINDS[row["local"]] == "off":
                continue  # by a setting, which the audit compares
            mine = self._mine.setdefault(key, _Mine())
            counter = f"tracehook/unregistered/{key}"
            if _registers(row) != mine.registered:
                mine.registered = not mine.registered
                mine.changed = now
                store.add(counter, -1 if mine.registered else 1)
            elif mine.changed is not None and now >= max(mine.changed, self._switched()) + GRACE:
                mine.changed = None
                differ = store.add(counter, 0) != (0 if mine.registered else row["size"])
                if differ or mine.told != mine.registered:
                    mine.told = mine.registered
                    yield _notice(key, row, mine.registered)

    def _say(self, rows: dict[str, dict[str, Any]]) -> None:
        for (key, rank), theirs in list(self._theirs.items()):
            row = rows.get(key)
            if row is None:
                if clock.monotonic() >= theirs.heard + FORGOTTEN:
                    del self._theirs[key, rank]
                continue
            notice = theirs.notice
            differs = rank != row["rank"] and notice.registered != _registers(row)
            if differs and clock.monotonic() < self._switched() + 2 * GRACE + HEARD:
                continue
            if differs and not theirs.is_said:
                found = _core.find_communicator(row["pointer"])
                if found is not None:
                    found.log("communicator.uneven", other_rank=rank, registered=notice.registered)
                warn(_sentence(notice))
            theirs.is_said = differs


def _registers(row: dict[str, Any]) -> bool:
    kind = KINDS[row["local"]]
    return kind == "observed" or (kind != "off" and not row["failed"] and _core.registering())


def _notice(key: str, row: dict[str, Any], registered: bool) -> Notice:
    import torch.distributed as dist

    world = f" (global rank {dist.get_rank()})" if dist.is_initialized() else ""
    who, group = f"rank {row['rank']}{world}", f"{row['size']} ranks"
    name = namer.known(row["id"])
    if name is not None:
        names = of_group(name.name, name.desc, row["size"], name.members)
        who = names.named([row["rank"]]) if names.ranks else who
        group = names.described(row["size"])
    why = "" if registered else "a registration failed" if row["failed"] else "they were switched off"
    return Notice(key, row["rank"], who, f"communicator {key} ({group})", registered, why)


def _sentence(notice: Notice) -> str:
    differ = "NCCL may wait for ever where it uses registrations (NVLS)"
    if notice.registered:
        return (
            f"{notice.who} registers segments with {notice.about} and this rank does not: {differ}. "
            "Call tracehook.enable(), or tracehook.disable(), on all ranks"
        )
    return (
        f"{notice.who} has no registrations with {notice.about}, because {notice.why}, and this rank has: {differ}. "
        "Call tracehook.disable() on all ranks, or start the job again"
    )

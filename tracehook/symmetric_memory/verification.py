"""Compares in the background, away from every call, what the ranks of a communicator used: their digests.

The first-use check cannot see two placements that all ranks know and one rank swaps. Each rank takes a sample of its
digests every second or so, if it made calls since. Samples go to the first rank of the host (in shared memory), and
from there to rank 0 (in the store). The first rank combines what it has heard with its own before it tells that.

If samples differ, rank 0 raises an alarm with the calls in question. All ranks answer with what they know of them, by
the same way, and rank 0 names the first call that differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracehook import _core
from tracehook.agreement.alarms import Alarm
from tracehook.agreement.topology import LEADER, TopologyEpoch
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.symmetric_memory import divergence, samples, testimony
from tracehook.symmetric_memory.testimony import MOST, Testimony

if TYPE_CHECKING:
    from torch.distributed import Store

PERIOD = 1.5  # seconds between two samples of a rank
CHANNEL = "digests"
MOST_FENCED = 10.0  # seconds that calls wait for the answers of all ranks, also if the watchdog has no store any more


class Verification:
    """One rank's part for one communicator. Only the watchdog calls it.

    `epochs` grows once, when all ranks have learned who shares a host. Ranks see that at different times, so their keys
    have the number of the epoch: two ranks that see different ones do not hear each other until the later one sees it.
    """

    def __init__(self, communicator: Any, epochs: Sequence[TopologyEpoch], about: str) -> None:
        self._communicator = communicator
        self._epochs = epochs
        self._about = about
        self._due = 0.0
        self._calls = -1  # at the last sample
        self._same = -1  # the last call up to which all ranks below are known to have used the same
        self._answers: dict[str, Testimony] = {}  # of this rank, by alarm
        self._answered: dict[str, RoundVerdict | None] = {}
        self._is_fenced = False
        self._keys_read: set[str] = set()
        self._number = -1  # of the epoch
        self._begin(0)

    def step(self, store: Store) -> Alarm | None:
        """Tell this rank's sample, and what it heard; return what rank 0 asks all ranks if their samples differ."""
        if self._communicator.dead or time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + PERIOD
        self._begin(len(self._epochs) - 1)
        calls = self._communicator.calls
        if calls != self._calls:
            self._calls = calls
            self._heard.hear(self._topology.rank, samples.taken(self._communicator, calls))
        elif self._same >= calls - 1:
            return None  # all below are as far as this rank
        self._listen(store)
        told = self._heard.combined()
        if self._topology.rank == LEADER:
            return self._compare(told)
        if told and max(told) > self._same:
            self._same = max(told)
            self._tell(store, samples.written(told))
        return None

    def answer(self, alarm: Alarm, store: Store) -> RoundVerdict | None:
        """Tell what this rank, and those below it, know of the calls in question; on rank 0 name the first of them."""
        name, number = alarm.verdict_key, alarm.facts["epoch"]
        if name in self._answered:
            return self._answered[name]
        if number >= len(self._epochs):
            return None
        if name not in self._answers:
            # Calls wait until all know the last one: a call that some ranks make and others refuse would not end.
            self._is_fenced = True
            calls = self._communicator.raise_fence(_core.Fence.VERIFICATION, MOST_FENCED)
            first, last, rank = alarm.facts["first"], alarm.facts["last"], self._topology.rank
            self._answers[name] = testimony.of_rank(self._communicator, rank, first, last, calls)
        keys = [f"{name}/{rank}" for rank in self._epochs[number].topology.below]
        if keys and not store.check(keys):
            return None
        heard = [testimony.read(text) for text in store.multi_get(keys)] if keys else []
        known = testimony.joined([self._answers[name], *heard])
        if self._topology.rank != LEADER:
            store.set(f"{name}/{self._topology.rank}", testimony.written(known))
        self._answered[name] = self._verdict(alarm, known) if self._topology.rank == LEADER else None
        return self._answered[name]

    def lower_fence(self) -> None:
        """Let calls go on, up to the last."""
        if self._is_fenced:
            self._is_fenced = False
            self._communicator.lower_fence(_core.Fence.VERIFICATION)

    def keys_at_end(self) -> list[str]:
        """Return the keys that this rank alone reads: to remove one under its reader's eyes would stop that."""
        return sorted(self._keys_read)

    def _begin(self, number: int) -> None:
        """Tell by the topology of that epoch from now on."""
        if number != self._number:
            self._number = number
            self._topology, self._mailbox = self._epochs[number]
            self._heard = samples.Remembered([self._topology.rank, *self._topology.below])
            self._calls = self._same = -1
            self._told = 0

    def _listen(self, store: Store) -> None:
        below = set(self._topology.below)
        in_mailbox = self._mailbox.newest() if self._mailbox is not None and self._mailbox.is_complete else {}
        for rank in below & in_mailbox.keys():
            self._heard.hear(rank, samples.read(in_mailbox[rank]))
        # Whoever told before the mailbox was complete did so in the store.
        below -= in_mailbox.keys()
        keys = {rank: self._key(rank) for rank in sorted(below)}
        self._keys_read.update(keys.values())
        if keys and store.check(list(keys.values())):
            for rank, text in zip(keys, store.multi_get(list(keys.values())), strict=True):
                self._heard.hear(rank, samples.read(text))

    def _tell(self, store: Store, text: str) -> None:
        """Tell the one rank above, which looks at the mailbox as soon as all of the host have opened it."""
        self._told += 1
        if self._mailbox is not None and self._mailbox.is_complete and not self._topology.is_speaker:
            self._mailbox.post(self._told, text)
        else:
            store.set(self._key(self._topology.rank), text)

    def _verdict(self, alarm: Alarm, known: Testimony) -> RoundVerdict:
        where = testimony.difference(known, alarm.facts["first"], alarm.facts["last"], self._topology.names)
        text = (
            f"{self._about}: the ranks used different memory at {where}. Results since then may be wrong, so no rank "
            "makes another call on this communicator: start again from what was saved before"
        )
        hanging = testimony.mixed_call(known)
        if hanging is not None:
            text += (
                f". At call {divergence.number(hanging)} some ranks are in a symmetric kernel of NCCL and the others "
                "are not, so none of them comes to an end: abort the group"
            )
        return RoundVerdict("differed", text, data=[known.calls, hanging])

    def _compare(self, told: samples.Sample) -> Alarm | None:
        differing = [call for call, value in sorted(told.items()) if value is None]
        if not differing:
            self._same = max([self._same, *told])
            return None
        last = differing[0]
        first = max([self._same, last - MOST, *(call for call in told if call < last)]) + 1
        self._due = float("inf")  # this is the last that there is to say
        facts = {"channel": CHANNEL, "call": last, "first": first, "last": last, "epoch": self._number}
        key = f"{self._communicator.key:016x}"
        verdict_key = f"{self._topology.prefix}/verdict/{last}"
        return Alarm(key, self._topology.rank, self._about, "digests", [], (), verdict_key, facts)

    def _key(self, rank: int) -> str:
        return f"{self._topology.prefix}/sample/{self._number}/{rank}"

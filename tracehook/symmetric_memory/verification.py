"""Compares in the background, away from every call, what the ranks of a communicator used: their digests.

The first-use check cannot see two placements that all ranks know and one rank swaps. Each rank takes a sample of its
digests every second or so, if it made calls since, and puts it into the store, where rank 0 reads those of all ranks.

If samples differ, rank 0 raises an alarm with the calls in question. All ranks answer with what they know of them, and
rank 0 names the first call that differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from torch.distributed import Store

from tracehook import _core
from tracehook.agreement.alarms import Alarm
from tracehook.agreement.rounds import LEADER, RoundTopology
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.log import clock
from tracehook.symmetric_memory import divergence, testimony
from tracehook.symmetric_memory.testimony import MOST, Testimony

PERIOD = 1.5  # seconds between two samples of a rank
MOST_AT_ONCE = 128  # ranks: of more, the period is as many times longer, so that rank 0 reads no more in a second
CHANNEL = "digests"
MOST_FENCED = 10.0  # seconds that calls wait for the answers of all ranks, also if the watchdog has no store any more

Sample = dict[int, int]  # digests, by the number of the call after which they stood

# A sample has the digests after the last calls whose numbers are multiples of these: ranks that are at different calls
# have some of them in common.
_STRIDES = (1, 16, 256, 1024)
_OF_EACH = 16
# What rank 0 reads is older than its own sample, by up to a period. So it remembers more of the rare calls than a rank
# sends: at 6,000 calls a second those of the last 20 seconds.
_REMEMBERED = 128


class Verification:
    """One rank's part for one communicator. Only the watchdog calls it."""

    def __init__(self, communicator: _core.Communicator, topology: RoundTopology) -> None:
        self._communicator = communicator
        self._topology = topology
        self._is_leader = topology.rank == LEADER
        self._period = PERIOD * max(1.0, topology.ranks / MOST_AT_ONCE)
        self._due = 0.0
        self._calls = -1  # at the last sample
        self._same = -1  # on rank 0: the last call up to which all ranks are known to have used the same
        self._heard: dict[int, Sample] = {rank: {} for rank in range(topology.ranks if self._is_leader else 0)}
        self._answers: dict[str, Testimony] = {}  # of this rank, by alarm
        self._answered: dict[str, RoundVerdict | None] = {}
        self._is_fenced = False

    def step(self, store: Store) -> Alarm | None:
        """Tell this rank's sample; return what rank 0 asks all ranks if their samples differ."""
        if self._communicator.dead or clock.monotonic() < self._due:
            return None
        self._due = clock.monotonic() + self._period
        calls = self._communicator.calls
        if calls != self._calls:
            sample = _sample(self._communicator, calls)
            if self._is_leader:
                self._hear(LEADER, sample)
            else:
                store.set(self._key(self._topology.rank), json.dumps(sample))
            self._calls = calls
        elif self._same >= calls - 1:
            return None  # all are as far as this rank
        if not self._is_leader:
            return None
        keys = [self._key(rank) for rank in self._others]
        if store.check(keys):
            for rank, text in zip(self._others, store.multi_get(keys), strict=True):
                self._hear(rank, {int(call): value for call, value in json.loads(text).items()})
        return self._compare(_in_common(self._heard.values()))

    def answer(self, alarm: Alarm, store: Store) -> RoundVerdict | None:
        """Tell what this rank knows of the calls in question; on rank 0 name the first of them, once all have told."""
        name = alarm.verdict_key
        if name in self._answered:
            return self._answered[name]
        if name not in self._answers:
            # Calls wait until all know the last one: a call that some ranks make and others refuse would not end.
            self._is_fenced = True
            calls = self._communicator.raise_fence(_core.Fence.VERIFICATION, MOST_FENCED)
            self._answers[name] = testimony.of_rank(
                self._communicator, alarm.facts["first"], alarm.facts["last"], calls
            )
        if not self._is_leader:
            store.set(f"{name}/{self._topology.rank}", testimony.written(self._answers[name]))
            self._answered[name] = None
            return None
        keys = [f"{name}/{rank}" for rank in self._others]
        if not store.check(keys):
            return None
        heard = [testimony.read(text) for text in store.multi_get(keys)]
        self._answered[name] = self._verdict(alarm, [self._answers[name], *heard])
        return self._answered[name]

    def lower_fence(self) -> None:
        """Let calls go on, up to the last."""
        if self._is_fenced:
            self._is_fenced = False
            self._communicator.lower_fence(_core.Fence.VERIFICATION)

    def keys_at_end(self) -> list[str]:
        """Return the keys that this rank alone reads: to remove one under its reader's eyes would stop that."""
        return [self._key(rank) for rank in self._others] if self._is_leader else []

    @property
    def _others(self) -> range:
        return range(LEADER + 1, self._topology.ranks)

    def _hear(self, rank: int, sample: Sample) -> None:
        self._heard[rank] = _newest(self._heard[rank] | sample)

    def _verdict(self, alarm: Alarm, known: list[Testimony]) -> RoundVerdict:
        where = testimony.difference(known, alarm.facts["first"], alarm.facts["last"], self._topology.names)
        text = (
            f"{self._topology.about}: the ranks used different memory at {where}. Results since then may be wrong, so "
            "no rank makes another call on this communicator: start again from what was saved before"
        )
        hanging = testimony.mixed_call(known)
        if hanging is not None:
            text += (
                f". At call {divergence.number(hanging)} some ranks are in a symmetric kernel of NCCL and the others "
                "are not, so none of them comes to an end: abort the group"
            )
        return RoundVerdict("differed", text, data=[max(one.calls for one in known), hanging])

    def _compare(self, told: Mapping[int, int | None]) -> Alarm | None:
        differing = [call for call, value in sorted(told.items()) if value is None]
        if not differing:
            self._same = max([self._same, *told])
            return None
        last = differing[0]
        first = max([self._same, last - MOST, *(call for call in told if call < last)]) + 1
        self._due = float("inf")  # this is the last that there is to say
        facts = {"channel": CHANNEL, "call": last, "first": first, "last": last}
        key = f"{self._communicator.key:016x}"
        verdict_key = f"{self._topology.prefix}/verdict/{last}"
        return Alarm(key, self._topology.rank, self._topology.about, "digests", [], (), verdict_key, facts)

    def _key(self, rank: int) -> str:
        return f"{self._topology.prefix}/sample/{rank}"


def _sample(communicator: _core.Communicator, calls: int) -> Sample:
    """Return the sample of a rank that has made so many calls."""
    wanted = {calls - 1 - (calls - 1) % stride - stride * step for stride in _STRIDES for step in range(_OF_EACH)}
    found = ((call, communicator.digests(call, call)[1]) for call in sorted(wanted) if call >= 0)
    return {call: values[0] for call, values in found if values}


def _newest(sample: Sample) -> Sample:
    """Return the newest calls of a sample, the rare and the others."""
    rare = sorted(call for call in sample if call % _STRIDES[-1] == 0)[-_REMEMBERED:]
    others = sorted(call for call in sample if call % _STRIDES[-1])[-_REMEMBERED:]
    return {call: sample[call] for call in sorted([*rare, *others])}


def _in_common(samples: Iterable[Sample]) -> dict[int, int | None]:
    """Return the calls that all samples have: their digest, or None if two samples differ."""
    first, *others = samples
    return {
        call: value if all(other[call] == value for other in others) else None
        for call, value in first.items()
        if all(call in other for other in others)
    }

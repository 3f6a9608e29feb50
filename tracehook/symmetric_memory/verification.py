"""Compares in the background, away from every call, what the ranks of a communicator used: their digests.

The first-use check cannot see two placements that all ranks know and one rank swaps. Each rank posts samples of its
digest every second or so, if it made calls since. Rank 0 compares what all have posted. If samples differ it raises an
alarm with the calls in question; every rank answers with all it knows of them, and rank 0 names the first that differs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook import _core
from tracehook.symmetric_memory import divergence
from tracehook.symmetric_memory.alarm import Alarm
from tracehook.symmetric_memory.members import NOBODY, Members
from tracehook.symmetric_memory.part import LEADER
from tracehook.symmetric_memory.verdicts import RoundVerdict

if TYPE_CHECKING:
    from torch.distributed import Store

PERIOD = 1.5  # seconds between two posts of a rank
CHANNEL = "digests"
# A sample has the digests after the last calls whose numbers are multiples of these: ranks that are at different calls
# have some of them in common.
STRIDES = (1, 16, 256, 1024)
OF_EACH = 16
MOST_FENCED = 10.0  # seconds that calls wait for the answers of all ranks
MOST = 2048  # calls that an answer tells of


class _Answer(NamedTuple):
    """What a rank tells of the calls in question, and of those after them."""

    first: int  # the call that `digests` and `uses` begin with
    digests: list[int]
    uses: list[str]
    calls: int  # that this rank has made
    kernels: dict[str, bool]  # by call, as far as the rank knows: whether NCCL took a symmetric kernel


class Verification:
    """One rank's part for one communicator. Only the watch calls it."""

    def __init__(
        self, communicator: Any, prefix: str, rank: int, ranks: int, about: str, members: Members = NOBODY
    ) -> None:
        self._communicator = communicator
        self._prefix = prefix
        self._rank = rank
        self._ranks = ranks
        self._about = about
        self._members = members
        self._due = 0.0
        self._posted = -1  # calls at the last post
        self._same = -1  # the last call up to which all ranks are known to have used the same
        self._answered: set[str] = set()
        self._fenced: float | None = None  # since when

    def step(self, store: Store) -> Alarm | None:
        """Post, and on rank 0 compare; return what to ask the ranks if their samples differ."""
        if self._fenced is not None and time.monotonic() >= self._fenced + MOST_FENCED:
            self.lower_fence()  # some rank gives no answer
        if self._communicator.dead or time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + PERIOD
        calls = self._communicator.calls
        if calls != self._posted:
            self._posted = calls
            store.set(self._key("sample", self._rank), json.dumps(self._sample(calls)))
        return self._compare(store) if self._rank == LEADER and calls > self._same + 1 else None

    def answer(self, alarm: Alarm, store: Store) -> RoundVerdict | None:
        """Tell all that this rank knows of the calls in question; on rank 0 name the first that differs."""
        name = alarm.verdict_key
        first, last = alarm.facts["first"], alarm.facts["last"]
        if name not in self._answered:
            self._answered.add(name)
            # Calls wait until all know the last one: a call that some ranks make and others refuse would not end.
            self._fenced = time.monotonic()
            calls = self._communicator.raise_fence(_core.Fence.VERIFICATION)
            known, values = self._communicator.digests(first, last)
            uses = [divergence.described(self._communicator, call) for call in range(known, known + len(values))]
            asked = range(max(first, calls - MOST), calls)
            kernels = {str(call): divergence.is_in_windows(self._communicator, call) for call in asked}
            told = {call: symmetric for call, symmetric in kernels.items() if symmetric is not None}
            store.set(f"{name}/{self._rank}", json.dumps(_Answer(known, values, uses, calls, told)))
        keys = [f"{name}/{rank}" for rank in range(self._ranks)]
        if self._rank != LEADER or not store.check(keys):
            return None
        return self._verdict(first, last, [_Answer(*json.loads(data)) for data in store.multi_get(keys)])

    def lower_fence(self) -> None:
        """Let calls go on, up to the last."""
        if self._fenced is not None:
            self._fenced = None
            self._communicator.lower_fence(_core.Fence.VERIFICATION)

    def keys_at_end(self) -> list[str]:
        """Return the samples of all on rank 0, which alone reads them: to remove one under its eyes would stop it."""
        return [self._key("sample", rank) for rank in range(self._ranks)] if self._rank == LEADER else []

    def _verdict(self, first: int, last: int, answers: Sequence[_Answer]) -> RoundVerdict:
        for call in range(first, last + 1):
            known = [
                (told.digests[call - told.first], told.uses[call - told.first])
                if told.first <= call < told.first + len(told.digests)
                else None
                for told in answers
            ]
            if None not in known and len({value for value, _ in known if value}) > 1:  # type: ignore[misc]
                did = [use for _, use in known]  # type: ignore[misc]
                where = f"call {divergence.number(call)}: " + "; ".join(
                    f"{self._members.named([rank])} made {use}"
                    for rank, use in enumerate(did)
                    if use != did[0] or rank == 0
                )
                break
        else:
            where = f"one of the calls {divergence.number(first)} to {divergence.number(last)}, which they know no more"
        text = (
            f"{self._about}: the ranks used different memory at {where}. Results since then may be wrong, so no rank "
            "makes another call on this communicator: start again from what was saved before"
        )
        hanging = _mixed_call(answers)
        if hanging is not None:
            text += (
                f". At call {divergence.number(hanging)} some ranks are in a symmetric kernel of NCCL and the others "
                "are not, so none of them comes to an end: abort the group"
            )
        return RoundVerdict("differed", text, data=[max(told.calls for told in answers), hanging])

    def _compare(self, store: Store) -> Alarm | None:
        keys = [self._key("sample", rank) for rank in range(self._ranks)]
        if not store.check(keys):
            return None
        samples = [{int(call): value for call, value in json.loads(data).items()} for data in store.multi_get(keys)]
        common = sorted(set(samples[0]).intersection(*samples[1:]))
        differing = [call for call in common if any(sample[call] != samples[0][call] for sample in samples)]
        if not differing:
            self._same = max([self._same, *common])
            return None
        last = differing[0]
        first = max([self._same, last - MOST, *(call for call in common if call < last)]) + 1
        self._due = float("inf")  # this is the last that there is to say
        facts = {"channel": CHANNEL, "call": last, "first": first, "last": last}
        key = f"{self._communicator.key:016x}"
        return Alarm(key, self._rank, self._about, "digests", [], (), self._key("verdict", last), facts)

    def _sample(self, calls: int) -> dict[int, int]:
        wanted = {calls - 1 - (calls - 1) % stride - stride * step for stride in STRIDES for step in range(OF_EACH)}
        found = ((call, self._communicator.digests(call, call)[1]) for call in sorted(wanted) if call >= 0)
        return {call: values[0] for call, values in found if values}

    def _key(self, what: str, which: int) -> str:
        return f"{self._prefix}/{what}/{which}"


def _mixed_call(answers: Sequence[_Answer]) -> int | None:
    """Return the first call for which NCCL took a symmetric kernel on some ranks only, of those that all ranks know."""
    common = set(answers[0].kernels).intersection(*(told.kernels for told in answers[1:]))
    mixed = [int(call) for call in common if len({told.kernels[call] for told in answers}) > 1]
    return min(mixed, default=None)

"""Follows the rounds of one communicator for the watchdog: answers alarms, samples calls, and ends what came apart."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from torch.distributed import Store

from tracehook._core import Communicator
from tracehook.agreement.agreement import Agreement, Waiting
from tracehook.agreement.alarms import Alarm
from tracehook.agreement.handshake import GUARD, GUARDS
from tracehook.agreement.rank_names import RankNames
from tracehook.agreement.rounds import RoundTopology
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.agreement.watchdog import Watchdog
from tracehook.errors import RegistrationMismatch, RegistrationTimeout
from tracehook.hook.groups import GroupFacts
from tracehook.log.stderr import say_once, warn
from tracehook.symmetric_memory import divergence
from tracehook.symmetric_memory.verification import CHANNEL, Verification

REGISTER_OTHER = "register a window of the program's own"  # a topic
# Whatever a rank that did not come makes next would meet whatever the others make next.
UNSURE = "The ranks may no longer make the same calls: abort the group"


class FollowedRanks(Protocol):
    """What a follower needs of :class:`GroupRanks`, which makes it."""

    facts: GroupFacts

    @property
    def guard(self) -> str:
        """What tracehook may do to the job, as all ranks allow."""

    @property
    def own_guard(self) -> str:
        """What this rank's setting says."""

    @property
    def names(self) -> RankNames:
        """Who the ranks are in the job."""

    @property
    def known(self) -> Communicator | None:
        """The communicator that was found last."""

    @property
    def watchdog(self) -> Watchdog | None:
        """What watches the rounds."""

    def topology(self) -> RoundTopology | None:
        """Return how the ranks come together in the rounds of uses."""

    def end(self, text: str, from_call: int = 0) -> None:
        """Refuse every further call."""

    def come_apart(self, verdict: RoundVerdict) -> None:
        """End, because some rank is inside NCCL alone."""


class RanksFollower:
    """Follows the rounds of one channel of one communicator, for its :class:`GroupRanks` (`ranks`)."""

    def __init__(self, ranks: FollowedRanks, communicator: Communicator, channel: str) -> None:
        self._ranks = weakref.ref(ranks)
        self._communicator = communicator
        self.channel = channel
        self.guard = GUARDS[-1]  # what all ranks allow, as far as this one has heard
        self._verification: Verification | None = None
        self._agreement: Agreement | None = None
        self._born_key = ""
        self._other: RanksFollower | None = None

    def serve(self, ranks: FollowedRanks) -> None:
        """Follow the rounds for `ranks` from now on: an alarm may have begun them before the group did."""
        self._ranks = weakref.ref(ranks)

    def follows(self, agreement: Agreement, born_key: str) -> None:
        """Take the rounds that this follows, and the key that counts how often this rank began them."""
        self._agreement, self._born_key = agreement, born_key

    def ends_with(self, other: RanksFollower) -> None:
        """Remove the keys of that channel, too, at the end."""
        self._other = other

    def following(self, waiting: Waiting) -> contextlib.AbstractContextManager[None]:
        """Raise an alarm if this round takes long."""
        watch = self._watch()
        if watch is None:
            return contextlib.nullcontext()
        communicator = self._communicator
        return watch.following(
            key_of(communicator), waiting, divergence.facts(communicator, self.channel), communicator.log
        )

    def diverged(self, verdict: RoundVerdict) -> None:
        """On the thread of the round, perhaps inside a call of torch. So the watchdog makes the abort."""
        ranks = self._ranks()
        if ranks is not None:
            ranks.end(verdict.text)

    def shaken(self, shaken: Mapping[str, Any]) -> None:
        """On the thread of the round: follow the rank that allows least, and say which settings differ."""
        self.guard = shaken.get("guard", self.guard)
        for text in shaken.get("differences", ()):
            say_once(text)

    def step(self, store: Store) -> Alarm | None:
        """On the watchdog's thread: see :meth:`Verification.step`."""
        ranks = self._ranks()
        topology = ranks.topology() if ranks is not None else None
        if ranks is None or topology is None or ranks.guard == "off":
            return None
        if self._verification is None:
            self._verification = Verification(self._communicator, topology)
        return self._verification.step(store)

    def answer(self, alarm: Alarm, store: Store) -> RoundVerdict | None:
        """On the watchdog's thread: see :func:`divergence.answer` and :meth:`Verification.answer`."""
        ranks, watch = self._ranks(), self._watch()
        if ranks is None or watch is None:
            return None
        if alarm.facts["channel"] == CHANNEL:
            return self._verification.answer(alarm, store) if self._verification is not None else None
        rank = ranks.facts.rank
        if ranks.own_guard == "off" and alarm.rank != rank and is_optional(alarm):
            return _nothing_compared(alarm, ranks.names.named([rank]))
        key = key_of(self._communicator)
        return divergence.answer(alarm, self._communicator, rank, lambda: watch.rounds_of(key), ranks.names)

    def apart(self, verdict: RoundVerdict) -> None:
        """On the watchdog's thread: some rank is, or may be, inside NCCL alone."""
        ranks = self._ranks()
        if ranks is None or ranks.known is None or ranks.known.id != self._communicator.id:
            return
        if ranks.guard != "on":
            self._communicator.log("placement.mismatch")
            say_once(f"{verdict.text} (nothing is ended: SYMM_REGISTER_GUARD={ranks.guard})")
            if self._verification is not None:
                self._verification.lower_fence()
        elif verdict.kind == "diverged":
            ranks.come_apart(verdict)
        elif verdict.kind == "timeout":
            ranks.end(f"{verdict.text}. {UNSURE}")
        elif self._verification is not None:
            last, hanging = verdict.data
            ranks.end(verdict.text, last)
            self._verification.lower_fence()
            if hanging is not None:
                ranks.come_apart(verdict._replace(data=hanging))

    def missed(self, verdict_key: str, verdict: RoundVerdict) -> None:
        """On the watchdog's thread: say what the others waited for, if this rank did not come. It may wait in NCCL."""
        ranks = self._ranks()
        if ranks is not None and not self.has_come_to(verdict_key):
            mine = ranks.facts.rank
            for rank in [mine] if mine in verdict.missing else verdict.missing or [mine]:
                self._communicator.log("agreement.timeout", entries=0, missing_rank=rank)
            kind = RegistrationTimeout if verdict.kind == "timeout" else RegistrationMismatch
            warn(str(kind(verdict.text)))

    def has_come_to(self, verdict_key: str) -> bool:
        """Whether this rank takes part, or took part, in the round with that key."""
        mine = self._agreement is not None and self._agreement.has_come_to(verdict_key)
        return mine or (self._other is not None and self._other.has_come_to(verdict_key))

    def is_over(self) -> bool:
        """Whether nobody makes calls on the communicator any more."""
        return self._ranks() is None or self._communicator.dead

    def end(self, store: Store) -> None:
        """On the watchdog's thread: remove this rank's keys that nobody reads any more."""
        keys = self._agreement.keys_at_end() if self._agreement is not None else []
        # A communicator that was found is called by its group's name: another one may be called so, and is counted on.
        if self._communicator.dead and not self._communicator.adopted:
            keys.append(self._born_key)
        if self._verification is not None:
            keys += self._verification.keys_at_end()
        for key in keys:
            store.delete_key(key)
        if self._other is not None:
            self._other.end(store)

    def _watch(self) -> Watchdog | None:
        ranks = self._ranks()
        return ranks.watchdog if ranks is not None else None


def is_optional(alarm: Alarm) -> bool:
    """Whether the ranks may do without this comparison: of a place, or of a window that the program registers."""
    return alarm.facts["channel"] == "uses" or alarm.topic == REGISTER_OTHER


def _nothing_compared(alarm: Alarm, who: str) -> RoundVerdict:
    """Let the ranks go on that wait for one whose setting says that nothing is compared."""
    text = f"{alarm.about}: {GUARD} is off on {who}, so nothing is compared. Set it alike on all ranks"
    return RoundVerdict("ok", position=alarm.position, shaken={"guard": "off", "differences": [text]})


def key_of(communicator: Communicator) -> str:
    """Return what a communicator is called on all its ranks."""
    return f"{communicator.key:016x}"

"""The ranks of one process group: their communicator, what they compare on, and what ends it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracehook import _core
from tracehook.errors import RegistrationError
from tracehook.hook import groups, registrants
from tracehook.hook.job import attempt
from tracehook.log.stderr import warn
from tracehook.symmetric_memory import divergence
from tracehook.symmetric_memory.agreement import Agreement
from tracehook.symmetric_memory.answers import ENDED, say_once
from tracehook.symmetric_memory.hosts import own_host
from tracehook.symmetric_memory.meeting import MeetingPlace, Meetings
from tracehook.symmetric_memory.members import Members, of_group
from tracehook.symmetric_memory.ranks_follower import RanksFollower, key_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tracehook.policies.base import Answer
    from tracehook.symmetric_memory.verdicts import RoundVerdict


class GroupRanks:
    """The part of :class:`GroupWindows` that knows no windows: who the ranks are, and how they reach each other."""

    is_of_torch = True  # a group of torch stands for it

    def __init__(
        self,
        group: ProcessGroup | None,
        timeout: float,
        meetings: Meetings,
        on_new_communicator: Callable[[ProcessGroup | None], None],
        abort: Callable[[ProcessGroup, str], None],
        verifies: bool,
        facts: groups.GroupFacts | None = None,
    ) -> None:
        self.group = weakref.ref(group) if group is not None else _no_group
        self.facts = facts or groups.facts(group)
        self._timeout = timeout
        self._meetings = meetings
        self._abort = abort
        self._on_new_communicator = on_new_communicator
        self._communicator: Any = None
        self.verifies = verifies
        self._had_one = False  # a communicator
        self._is_apart = False
        self._connecting: Agreement | None = None
        self._plans: Agreement | None = None
        self._uses: Agreement | None = None
        self._followers: tuple[RanksFollower, ...] = ()
        self._place: MeetingPlace | None = None  # where the ranks compare what concerns the communicator
        self._looking = threading.RLock()  # one look for the communicator at a time; taken with or without the other
        self.deferred: list[int] = []  # segments that were touched during a capture
        self.refused: tuple[str, str] | None = None  # reason code and sentence: no window is made any more
        self.last_failure: tuple[str, str] | None = None
        self._comparing = threading.Lock()  # held during the comparison of policies
        self._policies: str | None = None  # why the ranks' policies cannot be used; None: they did not compare yet
        self.choices: set[tuple[str, Answer]] = set()  # what policies answered for scopes, and which did

    # --- the communicator ---

    def communicator(self) -> Any:
        """Return the group's communicator as the native side knows it; None if torch has not made it yet."""
        found = self._communicator
        if found is not None and not found.dead:
            return found
        with self._looking:
            if self._communicator is None or self._communicator.dead:
                self._communicator = self._find()
                self._on_new_communicator(self.group())
            return self._communicator

    def _find(self) -> Any:
        group = self.group()
        if group is not None and groups.is_known(group):
            # A group that is reconfigured keeps its object, and has other ranks. Not its device: without a bound one
            # that is the current one of whoever asks.
            self.facts = groups.facts(group)._replace(device=self.facts.device)
        pointer = groups.communicator_pointer(self.facts)
        if not pointer:
            return None
        self._had_one = True
        found = _core.find_communicator(pointer)
        if found is None:
            by_itself = registrants.registers_itself(self.facts.backend)
            _core.adopt_communicator(pointer, self.facts.device, groups.shared_name(self.facts.name), by_itself)
            found = _core.find_communicator(pointer)
        if found is not None:
            self._begin(found)
        return found

    def _begin(self, found: Any) -> None:
        """Begin with a new communicator: what was agreed on with a former one means nothing for it."""
        with self._meetings.beginning:
            before = self._meetings.begun.get(found.id)
            if before is None or before is self:
                self._begin_sequences(found)
                self._meetings.begun[found.id] = self
            else:
                # One pair of sequences for a communicator: other ranks need not ask by its group, or not yet.
                self._plans, self._uses = before._plans, before._uses
                self._place, self._followers = before._place, before._followers
                for follower in self._followers if self.is_of_torch else ():
                    follower.serve(self)  # who began for an alarm has no group that it could abort
        self.refused = self.last_failure = None
        self._is_apart = False
        if self._communicator is not None:
            self.deferred = []

    def _begin_sequences(self, found: Any) -> None:
        # Two, because a scope's end and a collective need not come in the same order where several threads work.
        name = key_of(found)
        self._followers = plans, uses = RanksFollower(self, found, "plans"), RanksFollower(self, found, "uses")
        if self.facts.ranks > 1:
            # An alarm names only the communicator. Whoever begins for it (others.py) does not know the group's store.
            of_job = groups.job_store()
            self._place = self._meetings.place(of_job if of_job is not None else self.facts.store)
        self._plans = self._agreement(f"{name}/windows", self._place, plans)
        self._uses = self._agreement(f"{name}/placement", self._place, uses, self.verifies)
        self._plans.about = self._uses.about = self._called(found)
        if self._place is not None:
            uses.ends_with(plans)
            self._place.meeting.watch.watch(key_of(found), uses)

    def _place_of_group(self) -> MeetingPlace | None:
        """Return where the ranks meet while they have no communicator, whose key would be unlike all others."""
        return self._meetings.place(self.facts.store) if self.facts.ranks > 1 else None

    def _agreement(
        self, name: str, place: MeetingPlace | None, follower: RanksFollower | None = None, is_verified: bool = False
    ) -> Agreement:
        """Begin a sequence of rounds at that place; None: this rank is alone. An older one may have had this name."""
        facts = self.facts
        if place is None:
            return Agreement(None, name, facts.rank, facts.ranks, self.about, members=self.members)
        born_key = f"tracehook/{place.name}/{name}/born/{facts.rank}"
        channel = f"{place.name}/{name}/{place.meeting.count(born_key)}"
        lines = place.meeting.lines
        made = Agreement(
            lines, channel, facts.rank, facts.ranks, self.about, follower, own_host(), self.members, is_verified
        )
        if follower is not None:
            follower.follows(made, born_key)
        return made

    # --- ranks that can no longer be level ---

    def end(self, text: str, from_call: int = 0) -> None:
        """Refuse every further call on the communicator, from that number on: its ranks can no longer be level."""
        communicator = self._communicator
        if communicator is None or self.has_ended():
            return
        self.refused = self.last_failure = ("failed", text)
        for agreement in (self._plans, self._uses):
            if agreement is not None:
                agreement.ended = text
        communicator.refuse(f"tracehook: {text}", from_call)
        say_once(text)

    def come_apart(self, verdict: RoundVerdict) -> None:
        """End, because some rank may be inside NCCL for a call that others did not make: only an abort ends that."""
        self.end(verdict.text)
        group, communicator = self.group(), self._communicator
        if group is None or communicator is None or self._is_apart:
            return
        self._is_apart = True
        if divergence.is_in_windows(communicator, verdict.data):
            # torch's abort would wait for the kernel, and all calls of the group for torch's abort.
            warn(f"{self.about}: this rank waits in a symmetric kernel of NCCL, which no abort ends: end this process")
        else:
            self._abort(group, self.about)

    def has_ended(self) -> bool:
        """Whether :meth:`end` was called for the communicator that the group has now."""
        return self._uses is not None and self._uses.ended is not None

    def is_on_one_host(self) -> bool:
        """Whether all ranks are known to share a host. They know after they agreed on something for the first time."""
        sequences = [sequence for sequence in (self._plans, self._uses) if sequence is not None]
        return any(len(sequence.neighbours) == self.facts.ranks for sequence in sequences)

    @property
    def about(self) -> str:
        """What messages call it."""
        return self._called(self._communicator)

    @property
    def members(self) -> Members:
        """Who the ranks are in the job."""
        return of_group(self.facts.name, self.facts.desc, self.facts.ranks, self.facts.members)

    def _called(self, communicator: Any) -> str:
        group = self.members.described(self.facts.ranks)
        return f"communicator {communicator.key:016x} ({group})" if communicator is not None else group

    def compare_policies(self, fingerprints: Mapping[str, str | None]) -> str:
        """Have the ranks compare once what their policies depend on. Collective. Return why they differ, or nothing."""
        with self._comparing:
            if self._policies is None:
                self._policies = self._compare_policies(fingerprints)
            return self._policies

    def _compare_policies(self, fingerprints: Mapping[str, str | None]) -> str:
        # The ranks of a group compare under the group's name, also if this rank has the communicator already: another
        # rank may not have it yet.
        by_key = not self.is_of_torch and self._communicator is not None
        name = f"{key_of(self._communicator)}/policies" if by_key else f"{attempt()}policies"
        raised = [repr(policy) for policy, text in fingerprints.items() if text is None]
        texts = {
            policy: "no fingerprint: that raised" if text is None else text for policy, text in fingerprints.items()
        }
        entries = [f"policy {policy!r} has {text}" for policy, text in texts.items()]
        try:
            place = self._place if by_key else self._place_of_group()
            self._agreement(name, place).compare("choose pools", entries, self._timeout)
        except RegistrationError as problem:
            return str(problem).removeprefix("tracehook: ")
        return f"{self.about}: the fingerprint of policy {' and '.join(raised)} raised on all ranks" if raised else ""

    def connect(self) -> Any:
        """Return the communicator; all ranks make it now if torch was waiting for the first collective."""
        found = self.communicator()
        if found is None and not self.was_made():
            self._connecting = self._connecting or self._agreement(f"{attempt()}connect", self._place_of_group())
            self._connecting.compare("make the communicator", [], self._timeout)
            groups.make_communicator(self.group(), self.facts)
            found = self.communicator()
        if found is None:
            text = f"{self.about} has no communicator on device {self.facts.device}: {ENDED}"
            raise RegistrationError(text, advice="Make a new group, or configure this one, before a scope of it")
        return found

    def was_made(self) -> bool:
        """Whether the group had a communicator, as far as can be told: torch would make another one, for nobody."""
        return self._had_one or groups.had_communicator(self.group(), self.facts)


def _no_group() -> None:
    """What stands for the reference to a group where there is none."""

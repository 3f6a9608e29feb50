"""The ranks of one process group: their communicator, what they compare on, and what ends it."""

from __future__ import annotations

import faulthandler
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed import ProcessGroup

from tracehook import _core
from tracehook.agreement.agreement import Agreement, telling_of_the_store
from tracehook.agreement.handshake import GUARDS
from tracehook.agreement.rank_names import RankNames, of_group
from tracehook.agreement.rounds import RoundTopology
from tracehook.agreement.store_session import StoreSession, StoreSessions
from tracehook.agreement.store_worker import token
from tracehook.agreement.verdicts import Post, RoundVerdict
from tracehook.agreement.watchdog import Watchdog
from tracehook.errors import RegistrationError
from tracehook.hook import background, groups, registrants
from tracehook.hook.job import attempt
from tracehook.log import clock
from tracehook.log.stderr import say_once, warn
from tracehook.log.text import ranks_in_words
from tracehook.policies.base import Answer
from tracehook.settings import Settings, shared
from tracehook.symmetric_memory import divergence
from tracehook.symmetric_memory.answers import ENDED
from tracehook.symmetric_memory.ranks_follower import RanksFollower, key_of
from tracehook.symmetric_memory.surroundings import place

BEGINNING = Post("compare", "begin to compare", [])  # as far as messages go
ABORT = 60.0  # seconds in which torch's abort of a group comes back, if it ever does
_BEGUN = "begun"  # a collective of some thread has made the communicator, or makes it
_LOOK = 0.002  # seconds between two looks for what another thread makes
LAST_WORDS = 10.0  # seconds that a process has to end by itself before it is ended, if its kernel never ends


class GroupRanks:
    """The part of :class:`GroupWindows` that knows no windows: who the ranks are, and how they reach each other."""

    is_of_torch = True  # a group of torch stands for it

    def __init__(
        self,
        group: ProcessGroup | None,
        settings: Settings,
        sessions: StoreSessions,
        on_new_communicator: Callable[[ProcessGroup | None], None],
        facts: groups.GroupFacts | None = None,
        session: StoreSession | None = None,
    ) -> None:
        self.group = weakref.ref(group) if group is not None else _no_group
        self.facts = facts or groups.facts(group)
        self._settings = settings
        self._sessions = sessions
        self._on_new_communicator = on_new_communicator
        self._communicator: _core.Communicator | None = None
        self._pointer = 0  # of the communicator, as torch told it last
        self._had_one = False  # a communicator
        self._is_apart = False
        self._at_store: tuple[Any, str] | None = None  # the group's store, and what its ranks call it
        self._connecting: Agreement | None = None
        self._is_connected = False  # it came to its communicator once, together with the other ranks
        self._plans: Agreement | None = None
        self._uses: Agreement | None = None
        self._followers: tuple[RanksFollower, ...] = ()
        self._session = session  # where the ranks compare what concerns the communicator
        self._looking = threading.RLock()  # one look for the communicator at a time; taken with or without the other
        self.deferred: list[int] = []  # segments that were touched during a capture
        self.refused: tuple[str, str] | None = None  # reason code and sentence: no window is made any more
        self.last_failure: tuple[str, str] | None = None
        self._comparing = threading.Lock()  # held during the comparison of policies
        self._policies: str | None = None  # why the ranks' policies cannot be used; None: they did not compare yet
        self.choices: set[tuple[str, Answer]] = set()  # what policies answered for scopes, and which did

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for the others: the group's own time-out, as torch has it now."""
        return groups.timeout(self.facts.backend)

    @property
    def guard(self) -> str:
        """What tracehook may do to the job: what this rank's setting says, or another rank's that says less."""
        told = [self.own_guard, *(follower.guard for follower in self._followers)]
        return min(told, key=GUARDS.index)

    @property
    def own_guard(self) -> str:
        """What this rank's setting says."""
        return self._settings.guard

    @property
    def watchdog(self) -> Watchdog | None:
        """What watches the rounds of the communicator, if it has other ranks."""
        return self._session.watchdog if self._session is not None else None

    def topology(self) -> RoundTopology | None:
        """Return how the ranks come together in the rounds of uses; None: there is no communicator yet."""
        return self._uses.topology() if self._uses is not None else None

    # --- the communicator ---

    @property
    def known(self) -> _core.Communicator | None:
        """The communicator that was found last, which may be dead; None: there was none."""
        return self._communicator

    def communicator(self) -> _core.Communicator | None:
        """Return the group's communicator as the native side knows it; None if torch has not made it yet."""
        found = self._communicator
        if found is not None and not found.dead:
            return found
        with self._looking:
            if self._communicator is None or self._communicator.dead:
                self._communicator = self._find()
                self._on_new_communicator(self.group())
            return self._communicator

    def lives(self) -> bool:
        """Whether the group has a communicator that has not ended."""
        found = self.communicator()
        return found is not None and not found.dead

    def is_in_use(self) -> bool:
        """Whether torch has the group, or its communicator lives.

        All ranks answer alike after ``destroy_process_group``, whichever of them keeps a reference to the group.
        """
        group, known = self.group(), self._communicator
        return (group is not None and groups.is_known(group)) or (known is not None and not known.dead)

    def _find(self) -> _core.Communicator | None:
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
        if found is None and self._communicator is not None and pointer == self._pointer:
            return self._communicator  # torch is about to end what NCCL has finalized
        self._pointer = pointer
        if found is None:
            by_itself = registrants.registers_itself(self.facts.backend)
            _core.adopt_communicator(pointer, self.facts.device, groups.shared_name(self.facts.name), by_itself)
            found = _core.find_communicator(pointer)
        if found is not None:
            self._begin(found)
        return found

    def _begin(self, found: _core.Communicator) -> None:
        """Begin with a new communicator: what was agreed on with a former one means nothing for it."""
        with self._sessions.beginning:
            before = self._sessions.begun.get(found.id)
            if before is None or before is self:
                self._begin_sequences(found)
                self._sessions.begun[found.id] = self
            else:
                # One pair of sequences for a communicator: other ranks need not ask by its group, or not yet.
                self._plans, self._uses = before._plans, before._uses
                self._session, self._followers = before._session, before._followers
                for follower in self._followers if self.is_of_torch else ():
                    follower.serve(self)  # who began for an alarm has no group that it could abort
        self.refused = self.last_failure = None
        self._is_apart = False
        if self._communicator is not None:
            self.deferred = []

    def _begin_sequences(self, found: _core.Communicator) -> None:
        # Two, because a scope's end and a collective need not come in the same order where several threads work.
        name = key_of(found)
        self._followers = plans, uses = RanksFollower(self, found, "plans"), RanksFollower(self, found, "uses")
        session = self._session = self._session_of_group()
        self._plans = self._agreement(f"{name}/windows", session, plans)
        self._uses = self._agreement(f"{name}/placement", session, uses)
        self._plans.about = self._uses.about = self._called(found)
        if session is not None:
            uses.ends_with(plans)
            session.watchdog.watch(key_of(found), uses)

    def compare_registered_calls(self, entries: list[str], longest: float) -> None:
        """Return if all ranks want to run the same calls on registered memory; raises what :class:`Agreement` raises.

        Once for a communicator, before its first such call.
        """
        communicator = self.communicator()
        if communicator is None or self._session is None:
            return
        follower = RanksFollower(self, communicator, divergence.CALLS)
        agreement = self._agreement(f"{key_of(communicator)}/calls", self._session, follower)
        for other in self._followers[:1]:
            other.ends_with(follower)
        position = (communicator.calls,)
        agreement.compare("calls on registered memory", entries, min(self.timeout, longest), position)

    def _session_of_group(self) -> StoreSession | None:
        """Return where the ranks meet: at the store of the group, which all of them have; None: this rank is alone."""
        if self.facts.ranks == 1:
            return None
        store = self.facts.store if self.facts.store is not None else groups.job_store()
        with telling_of_the_store(self.about, BEGINNING):
            if store is None:
                raise RuntimeError("the default group has ended, and with it the store where ranks meet")
            return self._sessions.at(store)

    def _name_at_store(self) -> str:
        """Return what the ranks call the group while it has no communicator: after its store, with its prefixes."""
        store = self.facts.store
        if self.facts.ranks > 1 and (self._at_store is None or self._at_store[0] is not store):
            self._at_store = store, token(store)
        return f"{attempt()}{self._at_store[1] if self._at_store else ''}"

    def _agreement(self, name: str, session: StoreSession | None, follower: RanksFollower | None = None) -> Agreement:
        """Begin a sequence of rounds there; None: this rank is alone. An older one may have had this name."""
        facts = self.facts
        if session is None:
            return Agreement(None, name, facts.rank, facts.ranks, self.about, names=self.names)
        born_key = f"tracehook/{session.name}/{name}/born/{facts.rank}"
        with telling_of_the_store(self.about, BEGINNING):
            number = session.workers.count(born_key, self.timeout)
        made = Agreement(
            session.workers,
            f"{session.name}/{name}/{number}",
            facts.rank,
            facts.ranks,
            self.about,
            follower,
            place(facts.device),
            self.names,
            shared(self._settings),
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
        """End, because some rank is inside NCCL for a call that others did not make: only an abort ends that."""
        self.end(verdict.text)
        group, communicator = self.group(), self._communicator
        if group is None or communicator is None or self._is_apart or self.guard != "on":
            return
        self._is_apart = True
        if divergence.is_in_windows(communicator, verdict.data):
            # torch's abort would wait for the kernel, and all calls of the group for torch's abort.
            self._end_process("this rank waits in a symmetric kernel of NCCL, which no abort ends")
        else:
            warn(f"aborting {self.about}: another rank made another call (SYMM_REGISTER_GUARD=on)")
            is_back = threading.Event()
            background.start(self, self._end_unless, "tracehook-abort", is_back)
            try:
                group.abort()
            finally:  # also where it raises, as that of a group that has ended
                is_back.set()

    def _end_unless(self, is_back: threading.Event) -> None:
        """End the process if the abort stands: that of nccl2 waits for a call that waits for another rank."""
        deadline = clock.monotonic() + ABORT
        while clock.monotonic() < deadline:
            if is_back.is_set() or _is_ending.wait(ABORT / 100):
                return
        self._end_process("torch's abort of the group does not come back")

    def _end_process(self, why: str) -> None:
        """End what no abort ends, as torch does at its own time-outs, so that the launcher can go on."""
        stands = f"{self.about}: {why}"
        if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
            warn(f"{stands}: end this process (TORCH_NCCL_ASYNC_ERROR_HANDLING=0)")
            return
        warn(f"{stands}: this process ends in {LAST_WORDS:g} s (SYMM_REGISTER_GUARD=on), if it does not end before")
        background.start(self, _end_by_abort, "tracehook-end")

    def end_soon(self) -> None:
        """At exit: the process ends by itself."""
        _is_ending.set()

    def has_ended(self) -> bool:
        """Whether :meth:`end` was called for the communicator that the group has now."""
        return self._uses is not None and self._uses.ended is not None

    def domain(self) -> str:
        """Return what joins the ranks, empty if they do not know: not before they agreed on something."""
        return next((each.domain for each in (self._plans, self._uses) if each is not None and each.domain), "")

    @property
    def about(self) -> str:
        """What messages call it."""
        return self._called(self._communicator)

    @property
    def names(self) -> RankNames:
        """Who the ranks are in the job."""
        return of_group(self.facts.name, self.facts.desc, self.facts.ranks, self.facts.members)

    def _called(self, communicator: _core.Communicator | None) -> str:
        group = self.names.described(self.facts.ranks)
        return f"communicator {communicator.key:016x} ({group})" if communicator is not None else group

    @property
    def partition(self) -> str:
        """Return what the groups of these very ranks are called alike, and no others: they can share a pool.

        Ranks outside of a group do not make its scopes, so a pool that they share would have other places there. Empty:
        these are all ranks of the job.
        """
        session, of_job = self._session_of_group(), groups.job_store()
        is_of_job = session is None or (of_job is not None and session is self._sessions.at(of_job))
        ranks = tuple(sorted(self.facts.members))
        if is_of_job and ranks == groups.job_ranks():
            return ""
        of_store = [] if session is None or is_of_job else [f"store {session.name[:6]}"]
        return ", ".join([*of_store, ranks_in_words(ranks, most=None) if ranks else self.about])

    def compare_policies(self, fingerprints: Mapping[str, str | None]) -> str:
        """Have the ranks compare once what their policies depend on. Collective. Return why they differ, or nothing."""
        with self._comparing:
            if self._policies is None:
                self._policies = self._compare_policies(fingerprints)
            return self._policies

    def _compare_policies(self, fingerprints: Mapping[str, str | None]) -> str:
        # The ranks of a group compare under the group's name, also if this rank has the communicator already: another
        # rank may not have it yet.
        keyed = None if self.is_of_torch else self._communicator
        name = f"{key_of(keyed) if keyed is not None else self._name_at_store()}/policies"
        raised = [repr(policy) for policy, text in fingerprints.items() if text is None]
        texts = {
            policy: "no fingerprint: that raised" if text is None else text for policy, text in fingerprints.items()
        }
        entries = [f"policy {policy!r} has {text}" for policy, text in texts.items()]
        try:
            session = self._session if keyed is not None else self._session_of_group()
            self._agreement(name, session).compare("choose pools", entries, self.timeout)
        except RegistrationError as problem:
            return str(problem).removeprefix("tracehook: ")
        return f"{self.about}: the fingerprint of policy {' and '.join(raised)} raised on all ranks" if raised else ""

    def connect(self) -> _core.Communicator:
        """Return the communicator; all ranks make it now if torch was waiting for the first collective."""
        found = self.communicator()
        if found is None and not self.was_made():
            self._make_communicator()
            found = self.communicator()
        elif found is not None and not self._is_connected and self._is_made_late():
            self._agreement_to_connect().answer([[_BEGUN]], self.timeout)
        self._is_connected = True
        if found is None:
            text = f"{self.about} has no communicator on device {self.facts.device}: {ENDED}"
            raise RegistrationError(text, advice="Make a new group, or configure this one, before a scope of it")
        return found

    def _agreement_to_connect(self) -> Agreement:
        if self._connecting is None:
            name = f"{self._name_at_store()}/connect"
            self._connecting = self._agreement(name, self._session_of_group())
        return self._connecting

    def _make_communicator(self) -> None:
        """Have torch make it, unless another thread's collective does on some rank: then torch would make two."""
        own = _BEGUN if groups.has_begun(self.facts.backend) else ""
        told = self._agreement_to_connect().exchange("make the communicator", [own], self.timeout)
        deadline = clock.monotonic() + self.timeout
        is_begun = [_BEGUN] in told or groups.has_begun(self.facts.backend)
        while is_begun and not groups.communicator_pointer(self.facts) and clock.monotonic() < deadline:
            clock.sleep(_LOOK)
        if not groups.communicator_pointer(self.facts):
            groups.make_communicator(self.group(), self.facts)

    def _is_made_late(self) -> bool:
        """Whether other ranks may lack the communicator still, for one of their threads has to make it."""
        return self.is_of_torch and self.facts.ranks > 1 and not groups.is_made_with_group(self.group(), self.facts)

    def was_made(self) -> bool:
        """Whether the group had a communicator, as far as can be told: torch would make another one, for nobody."""
        return self._had_one or groups.had_communicator(self.group(), self.facts)


def _no_group() -> None:
    """What stands for the reference to a group where there is none."""


_is_ending = threading.Event()


def _end_by_abort() -> None:
    if not _is_ending.wait(LAST_WORDS):
        faulthandler.dump_traceback(all_threads=True)
        os.abort()

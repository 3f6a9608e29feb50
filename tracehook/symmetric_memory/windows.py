"""The windows of one process group: what is registered, what waits, what was refused and why."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracehook import _core
from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.hook import groups, registrants
from tracehook.symmetric_memory.agreement import Agreement
from tracehook.symmetric_memory.answers import ENDED

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tracehook.symmetric_memory.stall_watch import StallWatch

REGISTER = "register windows"
_ADVICE = "Let the ranks allocate alike; tracehook.trim(group), on all ranks, gives back what is not used alike"
NO_WINDOW = "NCCL gave no window: this communicator has no symmetric memory"


class GroupWindows:
    """One for each process group. Its methods that are collective are called by all ranks at the same point."""

    def __init__(
        self,
        group: ProcessGroup,
        timeout: float,
        stalls: StallWatch,
        on_new_communicator: Callable[[ProcessGroup | None], None],
    ) -> None:
        self.group = weakref.ref(group)
        self.facts = groups.facts(group)
        self._timeout = timeout
        self._stalls = stalls
        self._on_new_communicator = on_new_communicator
        self._communicator: Any = None
        self._had_one = False  # a communicator
        self._plans: Agreement | None = None
        self._uses: Agreement | None = None
        self._lock = threading.RLock()  # one collective act at a time
        self._looking = threading.RLock()  # one look for the communicator at a time; taken with or without the other
        self.deferred: list[int] = []  # segments that were touched during a capture
        self.refused: tuple[str, str] | None = None  # reason code and sentence: no window is made any more
        self.last_failure: tuple[str, str] | None = None

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
            _core.adopt_communicator(pointer, self.facts.device, f"group:{self.facts.name}", by_itself)
            found = _core.find_communicator(pointer)
        if found is not None:
            # A new communicator: what was agreed on with a former one means nothing for it. Two sequences, because a
            # scope's end and a collective need not come in the same order where several threads work.
            name = f"{found.key:016x}"
            self._plans, self._uses = self._agreement(f"{name}/windows"), self._agreement(f"{name}/placement")
            self._plans.about = self._uses.about = self._called(found)
            self.refused = self.last_failure = None
            self.deferred = []
        return found

    def _agreement(self, name: str) -> Agreement:
        """A sequence of rounds of its own: a group may be made again under the same name, in the same store."""
        facts = self.facts
        channel = f"{facts.name}/{name}"
        born = facts.store.add(f"tracehook/{channel}/born/{facts.rank}", 1) if facts.ranks > 1 else 0
        return Agreement(facts.store, f"{channel}/{born}", facts.rank, facts.ranks, self.about)

    @property
    def about(self) -> str:
        """What messages call it."""
        return self._called(self._communicator)

    def _called(self, communicator: Any) -> str:
        group = f"group {self.facts.name}, {self.facts.ranks} ranks"
        return f"communicator {communicator.key:016x} ({group})" if communicator is not None else group

    def connect(self) -> Any:
        """Return the communicator; all ranks make it now if torch was waiting for the first collective."""
        found = self.communicator()
        if found is None and not self.was_made():
            self._agreement("connect").compare("make the communicator", [], self._timeout)
            groups.make_communicator(self.group(), self.facts)
            found = self.communicator()
        if found is None:
            raise RegistrationError(f"{self.about} has no communicator on device {self.facts.device}: {ENDED}")
        return found

    def was_made(self) -> bool:
        """Whether the group had a communicator, as far as can be told: torch would make another one, for nobody."""
        return self._had_one or groups.had_communicator(self.group(), self.facts)

    # --- registering ---

    def register(self, segments: Sequence[int], sizes: Mapping[int, int]) -> int:
        """Register a window on each segment that has none, in this order, on all ranks. Collective. Returns how many.

        `sizes`, in bytes, are those of all segments that still exist.
        """
        with self._lock:
            communicator = self.connect()
            wanted = [segment for segment in communicator.missing(segments) if segment in sizes]
            if not wanted or self.refused is not None:
                return 0
            return self._agree(communicator, REGISTER, wanted, sizes)

    def _agree(
        self, communicator: Any, topic: str, wanted: list[int], sizes: Mapping[int, int], more: Sequence[str] = ()
    ) -> int:
        # Held, so that none goes back to the driver between the agreement and NCCL: the others would wait there.
        if not _core.hold_segments(wanted):
            raise RegistrationError(
                f"{self.about}: memory that needs a window was given back by another thread meanwhile"
            )
        try:
            self._compare(communicator, topic, [*(f"{sizes[segment]} bytes" for segment in wanted), *more])
            return self._register(communicator, wanted) if wanted else 0
        finally:
            _core.unhold_segments(wanted)

    def _compare(self, communicator: Any, topic: str, entries: Sequence[str]) -> None:
        assert self._plans is not None
        begin = time.monotonic_ns()
        try:
            self._plans.compare(topic, entries, self._timeout)
        except RegistrationError as problem:
            self._note(communicator, problem, time.monotonic_ns() - begin, len(entries))
            if f"differ at {REGISTER!r}" in str(problem):
                raise RegistrationMismatch(f"{problem}. {_ADVICE}") from None
            raise
        communicator.log_agreement("agreement.reached", len(entries), 0, time.monotonic_ns() - begin)

    def _note(self, communicator: Any, problem: RegistrationError, duration: int, entries: int) -> None:
        """Remember a failure for :meth:`explain <tracehook.explain>`, and log it."""
        self.last_failure = (_kind(problem), str(problem))
        self._log_failure(communicator, problem, duration, entries)

    def _log_failure(self, communicator: Any, problem: RegistrationError, duration: int, entries: int) -> None:
        if isinstance(problem, RegistrationTimeout):
            for rank in problem.missing or (self.facts.rank,):
                communicator.log_agreement("agreement.timeout", entries, rank, duration)
        elif isinstance(problem, RegistrationMismatch):
            communicator.log_agreement("agreement.mismatch", entries, 0, duration)
        else:
            communicator.log_agreement("agreement.failed", entries, 0, duration)

    def _register(self, communicator: Any, segments: list[int]) -> int:
        assert self._plans is not None
        failure = ""
        try:
            with self._stalls.watching((self, communicator)):
                outcomes = communicator.register_windows(segments, bool(_core.capturing(self.facts.device)))
            failure = _failure(outcomes, len(segments))
            self._plans.confirm(REGISTER, failure, self._timeout)
        except RegistrationError as raised:
            problem = raised
            if failure and isinstance(raised, RegistrationTimeout):
                # Why the others did not come: they wait in NCCL for what failed here, or that wait was ended.
                problem = RegistrationTimeout(f"{raised}. On rank {self.facts.rank}: {failure}", raised.missing)
            communicator.drop_windows()
            self._note(communicator, problem, 0, len(segments))
            self._refuse(problem)
            if self.refused is not None and self.refused[0] == "no_symmetric_support":
                return 0
            if problem is raised:
                raise
            raise problem from raised
        except BaseException:  # Ctrl-C: the others find this rank missing, and drop what they have
            communicator.drop_windows()
            self._drop_all(("failed", "interrupted while windows were registered"))
            raise
        if not communicator.confirm_windows():
            raise RegistrationError(f"the communicator of {self.about} ended while windows were registered with it")
        self.last_failure = None
        return len(segments)

    def _refuse(self, problem: RegistrationError) -> None:
        """After a failed registration nobody knows what NCCL still has in its queue: no more of them."""
        failures = problem.failures if isinstance(problem, RegistrationFailed) else {}
        if len(failures) == self.facts.ranks and set(failures.values()) == {NO_WINDOW}:
            self.refused = ("no_symmetric_support", f"{NO_WINDOW} ({self.about})")
        else:
            # Nor may windows be used that were made before. Those of captured graphs cannot be taken away.
            self._drop_all(("failed", str(problem)))

    # --- the other collective acts ---

    def sync(self, sizes: Mapping[int, int]) -> int:
        """Register what was deferred. `sizes` are those of the segments that still exist. Collective."""
        with self._lock:
            communicator = self.connect()
            waiting = list(self.deferred)
            wanted = [segment for segment in communicator.missing(waiting) if segment in sizes and self.refused is None]
            uses, digest = communicator.digest()
            more = [f"{uses} collectives with windows so far, placements {digest:016x}"]
            count = self._agree(communicator, "sync", wanted, sizes, more)
            self.deferred = [segment for segment in self.deferred if segment not in waiting]
            return count

    def trim(self, retired: dict[int, int]) -> int:
        """Deregister the windows on segments that are unused on all ranks. Collective. Returns how many.

        `retired` are this rank's unused segments with their sizes.
        """
        with self._lock:
            communicator = self.communicator()
            if communicator is None or self._plans is None:
                return 0
            mine = [
                window for window in communicator.windows() if window["segment"] in retired and not window["pinned"]
            ]
            offered = [f"{window['ordinal']} {window['size']}" for window in mine]
            begin = time.monotonic_ns()
            try:
                common = set(self._plans.common("trim", offered, self._timeout))
            except RegistrationError as problem:
                self._log_failure(communicator, problem, time.monotonic_ns() - begin, len(offered))
                raise
            leaving = [
                window["segment"] for window, offer in zip(mine, offered, strict=True) if offer in common
            ]  # by ordinal, so in the same order on all ranks
            return int(communicator.deregister_windows(leaving)) if leaving else 0

    def compare_use(self, topic: str, entries: Sequence[str]) -> None:
        """Compare where a collective's buffers lie. Called by the thread that issues it."""
        if self._uses is None:
            return
        begin = time.monotonic_ns()
        try:
            self._uses.compare(topic, entries, self._timeout)
        except RegistrationMismatch:
            raise  # the caller logs it, as one of places
        except RegistrationError as problem:
            communicator = self.communicator()
            if communicator is not None:
                self._log_failure(communicator, problem, time.monotonic_ns() - begin, len(entries))
            raise

    def drop_all(self, why: str) -> None:
        """Deregister every window, because the ranks use them differently; all ranks do so at the same collective."""
        self._drop_all(("placement", why))

    def _drop_all(self, refused: tuple[str, str]) -> None:
        self.refused = refused
        communicator = self.communicator()
        if communicator is not None:
            windows = [window["segment"] for window in communicator.windows() if not window["pinned"]]
            communicator.deregister_windows(windows)


def _kind(problem: RegistrationError) -> str:
    if isinstance(problem, RegistrationTimeout):
        return "timeout"
    return "mismatch" if isinstance(problem, RegistrationMismatch) else "failed"


def _failure(outcomes: Sequence[tuple[int, bool]], wanted: int) -> str:
    """Describe what NCCL said to the windows of one rank; empty if all is well."""
    for position, (result, effective) in enumerate(outcomes):
        if result:
            return f"NCCL error {result} at window {position} of {wanted}"
        if not effective:
            return NO_WINDOW
    if len(outcomes) < wanted:
        return f"the communicator ended at window {len(outcomes)} of {wanted}"
    return ""

"""The windows of one process group: what is registered, what waits, what was refused and why."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracehook import _core, groups, scope
from tracehook.agreement import Agreement
from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tracehook.stall import StallWatch

REGISTER = "register windows"
_ADVICE = "Let the ranks allocate alike; tracehook.trim(group), on all ranks, gives back what is not used alike"
NO_WINDOW = "NCCL gave no window: this communicator has no symmetric memory"


class GroupWindows:
    """One for each process group. Its methods that are collective are called by all ranks at the same point."""

    def __init__(self, group: ProcessGroup, timeout: float, stalls: StallWatch) -> None:
        self.group = weakref.ref(group)
        self.facts = groups.facts(group)
        self._timeout = timeout
        self._stalls = stalls
        self._member: Any = None
        self._plans: Agreement | None = None
        self._uses: Agreement | None = None
        self._lock = threading.RLock()  # one collective act at a time
        self.deferred: list[int] = []  # segments that were touched during a capture
        self.refused: tuple[str, str] | None = None  # reason code and sentence: no window is made any more
        self.last_failure: tuple[str, str] | None = None

    # --- the communicator ---

    def member(self) -> Any:
        """Return the group's communicator as the native side knows it; None if torch has not made it yet."""
        if self._member is None or self._member.dead:
            pointer = groups.communicator_pointer(self.facts)
            self._member = _core.find_communicator(pointer) if pointer else None
            if self._member is None and pointer:
                _core.adopt_communicator(pointer, self.facts.device, f"group:{self.facts.name}")
                self._member = _core.find_communicator(pointer)
            scope.forget_holder(self.group())
            if self._member is not None:
                self._begin(f"{self._member.key:016x}")
        return self._member

    def _begin(self, key: str) -> None:
        """A new communicator: what was agreed on with a former one means nothing for it."""
        self.refused = self.last_failure = None
        self.deferred = []
        # Two sequences: a scope's end and a collective need not come in the same order where several threads work.
        self._plans, self._uses = self._agreement(f"{key}/windows"), self._agreement(f"{key}/placement")

    def _agreement(self, name: str) -> Agreement:
        """A sequence of rounds of its own: a group may be made again under the same name, in the same store."""
        facts = self.facts
        channel = f"{facts.name}/{name}"
        born = facts.store.add(f"tracehook/{channel}/born/{facts.rank}", 1) if facts.ranks > 1 else 0
        return Agreement(facts.store, f"{channel}/{born}", facts.rank, facts.ranks, self.about)

    @property
    def about(self) -> str:
        """What messages call it."""
        group = f"group {self.facts.name}, {self.facts.ranks} ranks"
        return f"communicator {self._member.key:016x} ({group})" if self._member is not None else group

    def connect(self) -> Any:
        """Return the communicator; all ranks make it now if torch was waiting for the first collective."""
        found = self.member()
        if found is None:
            import torch

            self._agreement("connect").compare("make the communicator", [], self._timeout)
            self.facts.backend.eager_connect_single_device(torch.device("cuda", self.facts.device))
            found = self.member()
        if found is None:
            raise RegistrationError(
                f"{self.about} has no communicator on device {self.facts.device}: it was aborted, or is being destroyed"
            )
        return found

    # --- registering ---

    def register(self, segments: Sequence[int], sizes: Sequence[int]) -> int:
        """Register a window on each segment, in this order, on all ranks. Collective. Returns how many there are."""
        with self._lock:
            member = self.connect()
            if self.refused is not None:
                return 0
            # Held, so that none goes back to the driver between the agreement and NCCL: the others would wait there.
            if not _core.hold_segments(segments):
                raise RegistrationError(
                    f"{self.about}: memory of the scope was given back by another thread before its end"
                )
            try:
                self._compare(member, REGISTER, [f"{size} bytes" for size in sizes])
                return self._register(member, list(segments))
            finally:
                _core.let_go_of_segments(segments)

    def _compare(self, member: Any, topic: str, entries: Sequence[str]) -> None:
        assert self._plans is not None
        begin = time.monotonic_ns()
        try:
            self._plans.compare(topic, entries, self._timeout)
        except RegistrationError as problem:
            self._note(member, problem, time.monotonic_ns() - begin, len(entries))
            if f"differ at {REGISTER!r}" in str(problem):
                raise RegistrationMismatch(f"{problem}. {_ADVICE}") from None
            raise
        member.log_agreement("agreement.reached", len(entries), 0, time.monotonic_ns() - begin)

    def _note(self, member: Any, problem: RegistrationError, duration: int, entries: int) -> None:
        """Remember a failure for :meth:`explain <tracehook.explain>`, and log it."""
        if isinstance(problem, RegistrationTimeout):
            self.last_failure = ("timeout", str(problem))
            for rank in problem.missing or (self.facts.rank,):
                member.log_agreement("agreement.timeout", entries, rank, duration)
        elif isinstance(problem, RegistrationMismatch):
            self.last_failure = ("mismatch", str(problem))
            member.log_agreement("agreement.mismatch", entries, 0, duration)
        else:
            self.last_failure = ("failed", str(problem))
            member.log_agreement("agreement.failed", entries, 0, duration)

    def _register(self, member: Any, segments: list[int]) -> int:
        assert self._plans is not None
        failure = ""
        try:
            with self._stalls.watching((self, member)):
                outcomes = member.register_windows(segments)
            failure = _failure(outcomes, len(segments))
            self._plans.confirm(REGISTER, failure, self._timeout)
        except RegistrationError as raised:
            problem = raised
            if failure and isinstance(raised, RegistrationTimeout):
                # Why the others did not come: they wait in NCCL for what failed here, or that wait was ended.
                problem = RegistrationTimeout(f"{raised}. On rank {self.facts.rank}: {failure}", raised.missing)
            member.drop_windows()
            self._note(member, problem, 0, len(segments))
            self._refuse(problem)
            if self.refused is not None and self.refused[0] == "no_symmetric_support":
                return 0
            if problem is raised:
                raise
            raise problem from raised
        except BaseException:  # Ctrl-C: the others do not hear of it, so the next agreement fails
            member.drop_windows()
            raise
        if not member.confirm_windows():
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

    def sync(self, sizes: dict[int, int]) -> int:
        """Register what was deferred. `sizes` are those of the segments that still exist. Collective."""
        with self._lock:
            member = self.connect()
            waiting = [segment for segment in member.missing(self.deferred) if segment in sizes]
            self.deferred = []
            uses, digest = member.digest()
            entries = [f"{sizes[segment]} bytes" for segment in waiting]
            entries.append(f"{uses} collectives with windows so far, placements {digest:016x}")
            self._compare(member, "sync", entries)
            return self._register(member, waiting) if waiting and self.refused is None else 0

    def trim(self, retired: dict[int, int]) -> int:
        """Deregister the windows on segments that are unused on all ranks. Collective. Returns how many.

        `retired` are this rank's unused segments with their sizes.
        """
        with self._lock:
            member = self.member()
            if member is None or self._plans is None:
                return 0
            mine = [window for window in member.windows() if window["segment"] in retired and not window["pinned"]]
            offered = [f"{window['ordinal']} {window['size']}" for window in mine]
            common = set(self._plans.common("trim", offered, self._timeout))
            leaving = [
                window["segment"] for window, offer in zip(mine, offered, strict=True) if offer in common
            ]  # by ordinal, so in the same order on all ranks
            return int(member.deregister_windows(leaving)) if leaving else 0

    def compare_use(self, topic: str, entries: Sequence[str]) -> None:
        """Compare where a collective's buffers lie. Called by the thread that issues it."""
        if self._uses is not None:
            self._uses.compare(topic, entries, self._timeout)

    def drop_all(self, why: str) -> None:
        """Deregister every window, because the ranks use them differently; all ranks do so at the same collective."""
        self._drop_all(("placement", why))

    def _drop_all(self, refused: tuple[str, str]) -> None:
        self.refused = refused
        member = self.member()
        if member is not None:
            windows = [window["segment"] for window in member.windows() if not window["pinned"]]
            member.deregister_windows(windows)


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

"""The windows of one process group: what is registered, what waits, what was refused and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch.distributed import ProcessGroup

from tracehook import _core
from tracehook._core import Communicator
from tracehook.agreement.store_session import StoreSession, StoreSessions
from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.hook.groups import GroupFacts
from tracehook.log import clock
from tracehook.log.stderr import warn
from tracehook.settings import Settings
from tracehook.symmetric_memory import fence as fences
from tracehook.symmetric_memory.fence import Fence
from tracehook.symmetric_memory.ranks import GroupRanks
from tracehook.symmetric_memory.ranks_follower import REGISTER_OTHER
from tracehook.symmetric_memory.stall_watch import StallWatch
from tracehook.symmetric_memory.surroundings import surroundings

REGISTER = "register windows"
Make = Callable[[], tuple[int, int | None]]
_ADVICE = {
    REGISTER: "Let the ranks allocate alike: tensors of the same sizes, in one order. A segment may be larger than its "
    "tensor; one of 1 to 10 MiB takes 20 MiB. tracehook.trim(group), on all ranks, gives back what is not used alike. "
    "If threads open scopes at the same time, let each of them use its own group, with SYMM_REGISTER_POLICY=isolated",
    REGISTER_OTHER: "Let all ranks register the same sizes in one order; what each rank chooses by itself, as in "
    "tuning or warm-up, has to be one choice for all",
}
NO_WINDOW = "NCCL gave no window: this communicator has no symmetric memory"


class GroupWindows(GroupRanks):
    """One for each process group. Its methods that are collective are called by all ranks at the same point."""

    def __init__(
        self,
        group: ProcessGroup | None,
        settings: Settings,
        stalls: StallWatch,
        sessions: StoreSessions,
        on_new_communicator: Callable[[ProcessGroup | None], None],
        facts: GroupFacts | None = None,
        session: StoreSession | None = None,
    ) -> None:
        super().__init__(group, settings, sessions, on_new_communicator, facts, session)
        self._stalls = stalls
        self._lock = threading.RLock()  # one collective act at a time

    # --- registering ---

    def register(self, segments: Sequence[int], sizes: Mapping[int, int], ends: int) -> int:
        """Register a window on each segment that has none, in this order, on all ranks. Collective. Returns how many.

        `sizes`, in bytes, are those of all segments that still exist. `ends`: scopes that ended since the last call.
        """
        with self._lock:
            communicator = self.connect()
            communicator.note_caller()
            wanted = [segment for segment in communicator.missing(segments) if segment in sizes]
            if not wanted or self.refused is not None:
                return 0
            self.require_awake()
            return self._agree(communicator, REGISTER, wanted, sizes, ends)

    def decline(self, why: str, ends: int) -> None:
        """Tell the others that this rank does not come to the end of the scope. Raises nothing, and does not wait."""
        communicator = self.communicator()
        if communicator is not None and self._plans is not None and self.refused is None:
            communicator.note_caller()
            self._plans.decline(REGISTER, why, self.timeout, fences.position(communicator, ends))

    def _agree(
        self,
        communicator: Communicator,
        topic: str,
        wanted: list[int],
        sizes: Mapping[int, int],
        ends: int,
        more: Callable[[], list[str]] | None = None,
    ) -> int:
        """Have the ranks compare what they want, and register it. `more` says what else they have to have alike."""
        # Held, so that none goes back to the driver between the agreement and NCCL: the others would wait there.
        held = _core.hold_segments(wanted)
        if held is None:
            raise RegistrationError(
                f"{self.about}: memory that needs a window was given back by another thread meanwhile",
                advice="Let no other thread call tracehook.trim or empty the cache while a scope ends",
            )
        try:
            with Fence(communicator) as fence:
                position = fence.position(ends)
                noun = "a segment of " if topic == REGISTER else ""
                entries = [f"{noun}{sizes[segment]} bytes" for segment in wanted]
                self._compare(communicator, fence, topic, entries, position, more)
                return self._register(communicator, fence, wanted, position) if wanted else 0
        finally:
            held.let_go()

    def _compare(
        self,
        communicator: Communicator,
        fence: Fence,
        topic: str,
        entries: Sequence[str],
        position: Sequence[int],
        more: Callable[[], list[str]] | None = None,
    ) -> None:
        """Return when all ranks want the same, and are level."""
        plans = self._plans
        assert plans is not None
        begin = clock.monotonic_ns()
        try:
            if plans.compare(topic, entries, self.timeout, position):
                fence.level(lambda *told: plans.level(topic, told, self.timeout, position), self.timeout / 2)
            if more is not None:
                plans.compare(topic, more(), self.timeout, position)
        except RegistrationError as problem:
            self._note(communicator, problem, clock.monotonic_ns() - begin, len(entries))
            if topic in _ADVICE and isinstance(problem, RegistrationMismatch) and problem.topic == topic:
                raise RegistrationMismatch(problem.text, advice=_ADVICE[topic]) from None
            raise
        communicator.log("agreement.reached", entries=len(entries), duration_ns=clock.monotonic_ns() - begin)

    def _note(self, communicator: Communicator, problem: RegistrationError, duration: int, entries: int) -> None:
        """Remember a failure for :meth:`explain <tracehook.explain>`, and log it."""
        self.last_failure = (_kind(problem), str(problem))
        self._log_failure(communicator, problem, duration, entries)

    def _log_failure(self, communicator: Communicator, problem: RegistrationError, duration: int, entries: int) -> None:
        if isinstance(problem, RegistrationTimeout):
            for rank in problem.missing or (self.facts.rank,):
                communicator.log("agreement.timeout", entries=entries, missing_rank=rank, duration_ns=duration)
        elif isinstance(problem, RegistrationMismatch):
            communicator.log("agreement.mismatch", entries=entries, duration_ns=duration)
        else:
            communicator.log("agreement.failed", entries=entries, duration_ns=duration)

    def _register(self, communicator: Communicator, fence: Fence, segments: list[int], position: Sequence[int]) -> int:
        fence.next = self._register_all(communicator, segments, position)
        if fence.next is None:
            return 0
        if not communicator.confirm_windows():
            text = f"the communicator of {self.about} ended while windows were registered with it"
            raise RegistrationError(text, advice="Destroy or abort a group only when no scope of it is open or ends")
        self.last_failure = None
        self._tell_surroundings(communicator)
        return len(segments)

    def _tell_surroundings(self, communicator: Communicator) -> None:
        """Let those who read the counts of collectives know what else their paths depend on."""
        around = surroundings(self.facts, self.domain())
        communicator.surrounded_by(around.packed())

    def _register_all(self, communicator: Communicator, segments: list[int], position: Sequence[int]) -> int | None:
        """Return the number of the next call, alike on all ranks; None: NCCL has no windows here."""
        assert self._plans is not None
        failure = ""
        try:
            with self._stalls.watching((self, communicator)):
                outcomes = communicator.register_windows(segments, bool(_core.capturing(self.facts.device)))
            failure = _failure(outcomes, len(segments))
            return self._plans.confirm(REGISTER, failure, self.timeout, position, _next_call(communicator))
        except RegistrationError as raised:
            problem = raised
            if failure and isinstance(raised, RegistrationTimeout):
                # Why the others did not come: they wait in NCCL for what failed here, or that wait was ended.
                where = self.names.named([self.facts.rank])
                problem = RegistrationTimeout(f"{raised.text}. On {where}: {failure}", raised.missing)
            communicator.drop_windows()
            self._note(communicator, problem, 0, len(segments))
            self._refuse(problem)
            if self.refused is not None and self.refused[0] == "no_symmetric_support":
                return None
            if problem is raised:
                raise
            raise problem from raised
        except BaseException:  # Ctrl-C: the others find this rank missing, and drop what they have
            communicator.drop_windows()
            self._drop_all(("failed", "interrupted while windows were registered"))
            raise

    def _refuse(self, problem: RegistrationError) -> None:
        """After a failed registration nobody knows what NCCL still has in its queue: no more of them."""
        failures = problem.failures if isinstance(problem, RegistrationFailed) else {}
        if len(failures) == self.facts.ranks and set(failures.values()) == {NO_WINDOW}:
            self.refused = ("no_symmetric_support", f"{NO_WINDOW} ({self.about})")
        else:
            # Nor may windows be used that were made before. Those of captured graphs cannot be taken away.
            self._drop_all(("failed", str(problem)))

    def register_of_others(self, wanted: str, flights: int, make: Make, unfit: str = "") -> tuple[str, int]:
        """Have the ranks compare a window that the program registers, and NCCL make it. Collective.

        `flights`: calls of an open group of the thread that registers; they are not waited for.
        `make` makes the call, and returns NCCL's answer and the window's handle: 0 if there is none, None if it comes
        later. Then collectives do not look for the window.
        `unfit`: why the call is refused if all ranks want the same; then `wanted` tells it from a call that is not.

        Returns:
            why the call is refused (empty: it is not), and NCCL's answer.

        """
        with self._lock:
            communicator = self.communicator()
            assert communicator is not None  # the program makes a call on it
            if self.guard == "off":
                return "", make()[0]
            with Fence(communicator, flights) as fence:
                position = fence.position(0)
                try:
                    self._compare(communicator, fence, REGISTER_OTHER, [wanted], position)
                    if self.guard == "off":  # as another rank has it, which compares nothing
                        fence.lower()
                        return "", make()[0]
                    if unfit:
                        raise RegistrationError(f"{self.about}: {unfit}", advice="")
                except RegistrationError as problem:
                    fence.lower()
                    if self.guard == "on":
                        return f"tracehook: {problem}", 0
                    warn(f"{problem}; registering all the same (SYMM_REGISTER_GUARD={self.guard})")
                    return "", make()[0]
                with self._stalls.watching((self, communicator)):
                    result, handle = make()
                if handle is None:
                    return "", result
                try:
                    fence.next = self._confirm_other(communicator, result, handle, position)
                    if fence.next is not None:
                        communicator.count_window_of_others(handle)
                        self._tell_surroundings(communicator)
                except RegistrationError as problem:
                    communicator.undo_window_of_others(handle)
                    return ("", result) if result else (f"tracehook: {problem}", 0)
                return "", result

    def _confirm_other(
        self, communicator: Communicator, result: int, handle: int, position: Sequence[int]
    ) -> int | None:
        """Return the number of the next call, alike on all ranks; None: NCCL has no windows here."""
        assert self._plans is not None
        failure = f"NCCL error {result}" if result else "" if handle else NO_WINDOW
        try:
            return self._plans.confirm(REGISTER_OTHER, failure, self.timeout, position, _next_call(communicator))
        except RegistrationFailed as problem:
            if set(problem.failures.values()) == {NO_WINDOW} and len(problem.failures) == self.facts.ranks:
                return None
            raise

    # --- the other collective acts ---

    def sync(self, sizes: Mapping[int, int]) -> int:
        """Register what was deferred. `sizes` are those of the segments that still exist. Collective."""
        with self._lock:
            communicator = self.connect()
            communicator.note_caller()
            waiting = list(self.deferred)
            wanted = [segment for segment in communicator.missing(waiting) if segment in sizes and self.refused is None]
            count = self._agree(communicator, "sync", wanted, sizes, 0, lambda: [_uses(communicator)])
            for segment in waiting:
                if segment in self.deferred:
                    self.deferred.remove(segment)  # in place: another thread's scope may add one meanwhile
            return count

    def trim(self, retired: dict[int, int]) -> int:
        """Deregister the windows on segments that are unused on all ranks. Collective. Returns how many.

        `retired` are this rank's unused segments with their sizes.
        """
        with self._lock:
            communicator = self.communicator()
            if communicator is None or self._plans is None:
                return 0
            communicator.note_caller()
            mine = [
                window for window in communicator.windows() if window["segment"] in retired and not window["pinned"]
            ]
            offered = [f"{window['ordinal']} {window['size']}" for window in mine]
            begin = clock.monotonic_ns()
            try:
                common = set(self._plans.common("trim", offered, self.timeout, fences.position(communicator, 0)))
            except RegistrationError as problem:
                self._log_failure(communicator, problem, clock.monotonic_ns() - begin, len(offered))
                raise
            leaving = [
                window["segment"] for window, offer in zip(mine, offered, strict=True) if offer in common
            ]  # by ordinal, so in the same order on all ranks
            return int(communicator.deregister_windows(leaving)) if leaving else 0

    def meet(self, communicator: Communicator, what: str, entries: Sequence[str]) -> None:
        """Return when all ranks have come to this call, with equal entries. Collective."""
        with self._lock:
            assert self._plans is not None  # there is a communicator
            communicator.note_caller()
            begin = clock.monotonic_ns()
            try:
                self._plans.compare(what, entries, self.timeout, fences.position(communicator, 0))
            except RegistrationError as problem:
                self._log_failure(communicator, problem, clock.monotonic_ns() - begin, len(entries))
                raise

    def require_awake(self) -> None:
        """Raise if NCCL has suspended the communicator: it may not be used then. All ranks raise alike."""
        communicator = self.communicator()
        if communicator is not None and communicator.suspended:
            raise RegistrationError(
                f"{self.about} is suspended (ncclCommSuspend), and NCCL has given its memory back",
                advice="Call tracehook.resume(group), or what else calls ncclCommResume, on all its ranks before",
            )

    def compare_use(self, topic: str, entries: Sequence[str], call: int) -> None:
        """Compare where the buffers of call number `call` lie. Called by the thread that issues it."""
        if self._uses is None:
            return
        begin = clock.monotonic_ns()
        try:
            self._uses.use(topic, entries, self.timeout, call)
        except RegistrationMismatch:
            raise  # the caller logs it, as one of places
        except RegistrationError as problem:
            communicator = self.communicator()
            if communicator is not None:
                self._log_failure(communicator, problem, clock.monotonic_ns() - begin, len(entries))
            raise

    def _drop_all(self, refused: tuple[str, str]) -> None:
        self.refused = refused
        communicator = self.communicator()
        if communicator is not None:
            windows = [
                window["segment"] for window in communicator.windows() if window["segment"] and not window["pinned"]
            ]
            communicator.deregister_windows(windows)


def _next_call(communicator: Communicator) -> int:
    """Return the number of the next call, or a new one if the other ranks may have numbered their calls differently."""
    calls: int = communicator.calls
    return _core.RENUMBERED if communicator.adopted and calls < _core.RENUMBERED else calls


def _uses(communicator: Communicator) -> str:
    uses, digest = communicator.digest()
    return f"{uses} collectives with windows so far, placements {digest:016x}"


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


def in_order(windows: Sequence[GroupWindows]) -> Iterator[GroupWindows]:
    """Yield the groups by name: ranks take the groups that they share in the same order, so none waits in a circle."""
    yield from sorted(windows, key=lambda found: found.facts.name)

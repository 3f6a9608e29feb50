"""Holds the calls of other threads back while the windows of a communicator change.

NCCL looks for windows when it takes a call in. If one rank makes a window before that and another rank after it, only
one of them uses the window, and both wait without end. So windows change only while the ranks are *level*: all made the
same calls, NCCL has taken these in, and no thread makes another one.

Where one thread uses the communicator, the ranks are level when they meet, because that thread is here. Where several
do, each rank says how many calls it made, and lets the calls pass that another rank made already. Then all say again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Self

from tracehook import _core
from tracehook.agreement.verdicts import UNKNOWN


class Wish(NamedTuple):
    """What a step asks its rank to do.

    ``several callers`` () -> whether several threads use the communicator. ``raise`` () and ``lower`` () the fence.
    ``in flight`` () -> whether some call is compared, or NCCL has not taken it in. ``calls`` () -> how many were made,
    or are compared (UNKNOWN: this rank cannot say).
    ``tell`` (failure, calls, in flight) -> the most calls that a rank made (UNKNOWN: some rank cannot say), and whether
    the ranks are level; it raises if some rank has a failure.
    ``let`` (calls) moves the fence there -> "" when so many were made and none is in flight, or why not.
    """

    name: str
    given: tuple[Any, ...] = ()


Steps = Generator[Wish, Any, Any]


def stand() -> Steps:
    """Return whether this rank's position is known: one thread uses the communicator. Then the fence is up."""
    if (yield Wish("several callers")):
        return False
    yield Wish("raise")
    if (yield Wish("several callers")):  # another thread came just now: it may have made its call
        yield Wish("lower")
        return False
    return True


def level() -> Steps:
    """Bring the ranks level. Collective."""
    yield Wish("raise")
    failure = ""
    while True:
        in_flight = yield Wish("in flight")
        calls = yield Wish("calls")  # after the other: a group that is open lets calls pass until it ends
        most, is_level = yield Wish("tell", (failure, calls, in_flight))
        if is_level:
            return
        failure = yield Wish("let", (most,))


class Fence:
    """The fence of one registration: up while the ranks have to be level, down at the end."""

    _is_up = False

    def __init__(self, communicator: _core.Communicator, own_flights: int | None = None) -> None:
        self._communicator = communicator
        # Calls in an open group of the thread that registers: they are not waited for.
        self._own_flights = communicator.own_flights if own_flights is None else own_flights
        self.next: int | None = None  # the number of the next call, if the ranks agreed on one

    def __enter__(self) -> Self:
        """Do nothing yet."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Let the calls go on that waited."""
        self.lower()

    def __del__(self) -> None:
        """The same: the handler of a signal may raise where ``__exit__`` begins."""
        self.lower()

    def lower(self) -> None:
        """Let the calls go on that waited. It can go up again."""
        if self._is_up:
            self._is_up = False
            self._communicator.lower_fence(_core.Fence.REGISTRATION, self.next)

    def position(self, ends: int) -> tuple[int, int]:
        """Return where in the program this rank is. Where one thread uses the communicator, the fence is up then."""
        return (self._communicator.calls, ends) if self._carry_out(stand()) else (UNKNOWN, UNKNOWN)

    def level(self, tell: Callable[[str, int, bool], tuple[int, bool]], patience: float) -> None:
        """Bring the ranks level. Collective.

        Args:
            tell: carries out the wish of that name.
            patience: seconds that a rank waits for calls of its other threads.

        """
        self._carry_out(level(), tell=tell, let=lambda calls: self._let(calls, patience))

    def _carry_out(self, steps: Steps, **more: Callable[..., Any]) -> Any:
        communicator = self._communicator
        do = more | {
            "several callers": lambda: communicator.several_callers,
            "raise": self._raise,
            "lower": self.lower,
            "in flight": lambda: communicator.in_flight(self._own_flights),
            "calls": self._calls,
        }
        answer = None
        while True:
            try:
                wish = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = do[wish.name](*wish.given)

    def _raise(self) -> None:
        if not self._is_up:
            self._is_up = True
            self._communicator.raise_fence(_core.Fence.REGISTRATION)

    def _calls(self) -> int:
        calls: int = self._communicator.calls_begun
        # A communicator that was found later than on other ranks does not know of the calls before.
        return UNKNOWN if self._communicator.adopted and calls < _core.RENUMBERED else calls

    def _let(self, calls: int, patience: float) -> str:
        communicator = self._communicator
        wanted = communicator.calls if calls == UNKNOWN else calls
        if communicator.wait_for_calls(wanted, self._own_flights, patience):
            return ""
        if communicator.dead:
            return "the communicator ended"
        if communicator.calls < wanted:
            why = f"its threads made {communicator.calls} of the {wanted} calls that another rank made"
        else:
            why = "NCCL had not taken in the call of another thread, or that thread's group did not end"
        return f"{why} within {patience:g} s: order calls and scopes alike on all ranks"


def position(communicator: _core.Communicator, ends: int) -> tuple[int, int]:
    """Return where in the program this rank is; see rounds.py. Calls of other threads say nothing of it."""
    return (UNKNOWN, UNKNOWN) if communicator.several_callers else (communicator.calls, ends)

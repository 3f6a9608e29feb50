"""Every interleaving of ranks that make a window while other threads of theirs make calls.

What runs here are the code's own steps (`fence.stand`, `fence.level`), on a model of the native fence: a call gets a
number, unless a fence holds it back, and is in flight until NCCL takes it in, or the group that it is in. The ranks
compare what a new call uses before it gets its number. What a call sees of windows, when the ranks compare it and when
NCCL takes it in, has to be alike on all ranks, and no rank may wait for ever.
"""

import functools
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import pytest

from tracehook.agreement.verdicts import UNKNOWN, Post, judge
from tracehook.symmetric_memory import fence
from tracehook.symmetric_memory.fence import Wish

CALL, NEW, GROUP = "call", "new", "group"  # NEW: a call that the ranks compare; GROUP: two calls


class Thread(NamedTuple):
    """A thread that makes calls: how far it is in its program, and which of its calls are in flight."""

    program: tuple[str, ...]
    step: int = 0  # micro-steps of the current act
    flights: tuple[int, ...] = ()
    came: bool = False
    sees: bool | None = None  # of a call that is compared: whether there is a window
    agreed: bool = False

    @property
    def is_compared(self) -> bool:
        """Whether the ranks compare its call now."""
        return self.sees is not None


class Rank(NamedTuple):
    """One rank: what the registering thread has heard, and what native code knows."""

    threads: tuple[Thread, ...]
    heard: tuple[Any, ...] = ()
    calls: int = 0
    limit: int | None = None  # where the fence stands
    has_window: bool = False
    saw: tuple[tuple[int, bool], ...] = ()  # by call: whether there was a window when NCCL took it in

    @property
    def flights(self) -> int:
        """How many calls of other threads are in flight."""
        return sum(len(thread.flights) + thread.is_compared for thread in self.threads)

    @property
    def callers(self) -> int:
        """How many threads the communicator knows of; one registers."""
        return 1 + sum(thread.came for thread in self.threads)


def life() -> Generator[Wish, Any, None]:
    """What the registering thread does: as `GroupWindows._agree`."""
    is_known = yield from fence.stand()
    if (yield Wish("compare", (is_known,))):
        yield from fence.level()
    yield Wish("register")
    yield Wish("lower")


@functools.cache
def next_wish(heard: tuple[Any, ...]) -> Wish | None:
    """Return what the registering thread does next after it heard this; None: nothing more."""
    steps = life()
    try:
        wish = next(steps)
        for answer in heard:
            wish = steps.send(answer)
    except StopIteration:
        return None
    return wish


def hear(rank: Rank, answer: Any = None, **change: Any) -> Rank:
    """Return the rank after its registering thread got an answer."""
    return rank._replace(heard=(*rank.heard, answer), **change)


def alone(rank: Rank, wish: Wish) -> Rank | None:
    """Carry out a wish that concerns one rank only; None: it waits."""
    match wish.name:
        case "several callers":
            return hear(rank, rank.callers > 1)
        case "raise":
            return hear(rank, limit=rank.calls if rank.limit is None else rank.limit)
        case "lower":
            return hear(rank, limit=None)
        case "in flight":
            return hear(rank, rank.flights > 0)
        case "calls":
            return hear(rank, rank.calls + sum(thread.is_compared for thread in rank.threads))
        case "let" if rank.limit != wish.given[0]:
            return rank._replace(limit=wish.given[0])
        case "let" if rank.calls >= wish.given[0] and not rank.flights:
            return hear(rank, "")
    return None


def together(ranks: tuple[Rank, ...], wishes: list[Wish]) -> tuple[Rank, ...] | None:
    """Carry out what all ranks do at one point; None: they are not there."""
    names = {wish.name for wish in wishes}
    if names == {"compare"}:
        several = not all(wish.given[0] for wish in wishes)
        return tuple(hear(rank, several) for rank in ranks)
    if names == {"tell"}:
        posts = [
            Post("level", "t", [why, str(calls), "in flight" * busy]) for why, calls, busy in (w.given for w in wishes)
        ]
        verdict = judge("group", posts)
        assert verdict.kind == "ok"
        return tuple(hear(rank, verdict.data) for rank in ranks)
    return None


def moved(rank: Rank, which: int) -> Rank | None:
    """Let one of the calling threads take its next step; None: it waits, or is at its end."""
    thread = rank.threads[which]
    if not thread.program:
        return None

    def replace(changed: Thread, **change: Any) -> Rank:
        return rank._replace(threads=(*rank.threads[:which], changed, *rank.threads[which + 1 :]), **change)

    if not thread.came:
        return replace(thread._replace(came=True))
    others = sum(other.is_compared for other in rank.threads) - thread.is_compared
    is_held = rank.limit is not None and rank.calls + others >= rank.limit and not thread.flights
    if thread.program[0] == NEW and not thread.step:
        if (thread.is_compared and not thread.agreed) or is_held:
            return None
        if thread.sees != rank.has_window:  # compare it; again, if windows changed meanwhile
            return replace(thread._replace(sees=rank.has_window, agreed=False))
        return replace(thread._replace(step=1, flights=(rank.calls,), sees=None), calls=rank.calls + 1)
    calls = 2 if thread.program[0] == GROUP else 1
    if thread.step < calls:  # the number
        if is_held:
            return None
        flights = (*thread.flights, rank.calls)
        return replace(thread._replace(step=thread.step + 1, flights=flights), calls=rank.calls + 1)
    saw = tuple(sorted((*rank.saw, *((call, rank.has_window) for call in thread.flights))))
    return replace(Thread(thread.program[1:], came=True), saw=saw)


State = tuple[Rank, ...]


def agreed(state: State, which: int) -> State | None:
    """Let the ranks compare the call of one of the calling threads; None: they are not there, or it is done."""
    threads = [rank.threads[which] for rank in state]
    if not all(thread.is_compared and not thread.agreed for thread in threads):
        return None
    assert len({thread.sees for thread in threads}) == 1, "the ranks differ at a call that they make alike"
    others = [
        (*rank.threads[:which], thread._replace(agreed=True), *rank.threads[which + 1 :])
        for rank, thread in zip(state, threads, strict=True)
    ]
    return tuple(rank._replace(threads=threads) for rank, threads in zip(state, others, strict=True))


def after(state: State) -> Iterator[State]:
    """Return what may happen next."""
    wishes = [next_wish(rank.heard) for rank in state]
    there = together(state, [wish for wish in wishes if wish is not None]) if None not in wishes else None
    if there is not None:
        yield there
    for which in range(len(state[0].threads)):
        compared = agreed(state, which)
        if compared is not None:
            yield compared
    # NCCL makes the window on each rank at a moment of its own, once all have come.
    may_register = all(wish is None or wish.name in ("register", "lower") for wish in wishes)
    for index, (rank, wish) in enumerate(zip(state, wishes, strict=True)):
        found = [moved(rank, which) for which in range(len(rank.threads))]
        if wish is not None:
            registers = wish.name == "register" and may_register
            found.append(hear(rank, has_window=True) if registers else alone(rank, wish))
        for other in found:
            if other is not None:
                yield (*state[:index], other, *state[index + 1 :])


def wrong(ranks: int, programs: tuple[tuple[str, ...], ...]) -> str:
    """Go through all histories; return what is wrong in one of them."""
    begin: State = (Rank(tuple(Thread(program) for program in programs)),) * ranks
    known, left = {begin}, [begin]
    while left:
        state = left.pop()
        further = list(after(state))
        if not further:
            if any(
                next_wish(rank.heard) is not None or any(thread.program for thread in rank.threads) for rank in state
            ):
                return f"waits for ever: {state}"
            if len({rank.saw for rank in state}) > 1:
                return f"calls differ: {[rank.saw for rank in state]}"
        for each in further:
            other = tuple(sorted(each, key=hash))  # which rank is which does not matter
            if other not in known:
                known.add(other)
                left.append(other)
    return ""


@pytest.mark.parametrize(
    "programs",
    [
        ((CALL,),),
        ((CALL, CALL, CALL),),
        ((GROUP,),),
        ((CALL, GROUP, CALL),),
        ((CALL, CALL), (CALL,)),
        ((GROUP,), (CALL,)),
        ((NEW,),),
        ((CALL, NEW, CALL, NEW),),
    ],
    ids=lambda programs: " + ".join(",".join(program) for program in programs),
)
def test_a_call_sees_the_same_windows_on_all_ranks(programs: tuple[tuple[str, ...], ...]) -> None:
    """Whenever the other threads make their calls, first ones or later ones, single ones or groups."""
    assert wrong(2, programs) == ""


def test_three_ranks() -> None:
    """The most calls of all ranks count, not of two."""
    assert wrong(3, ((CALL, CALL),)) == ""


@pytest.mark.parametrize(
    ("name", "broken"),
    [("level", "the fence alone"), ("level", "calls before flights"), ("stand", "no fence")],
)
def test_the_model_finds_a_hole(monkeypatch: pytest.MonkeyPatch, name: str, broken: str) -> None:
    """Steps that leave something out are found."""
    monkeypatch.setattr(fence, name, BROKEN[broken])
    next_wish.cache_clear()
    assert wrong(2, ((GROUP,), (CALL,))) != ""
    next_wish.cache_clear()


def _fence_alone() -> fence.Steps:
    yield Wish("raise")


def _calls_before_flights() -> fence.Steps:
    yield Wish("raise")
    while True:
        calls = yield Wish("calls")
        in_flight = yield Wish("in flight")
        most, is_level = yield Wish("tell", ("", calls, in_flight))
        if is_level:
            return
        yield Wish("let", (most,))


def _no_fence() -> fence.Steps:
    return not (yield Wish("several callers"))


BROKEN = {"the fence alone": _fence_alone, "calls before flights": _calls_before_flights, "no fence": _no_fence}


def test_ranks_that_cannot_count_wait_for_flights_only() -> None:
    """A rank that found its communicator late does not know the number of its calls."""
    posts = [Post("level", "t", ["", str(UNKNOWN), ""]), Post("level", "t", ["", "7", "in flight"])]
    assert judge("group", posts).data == (UNKNOWN, False)
    assert judge("group", [posts[0], Post("level", "t", ["", "7", ""])]).data == (UNKNOWN, True)

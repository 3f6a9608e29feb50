"""What a rank knows when another one waits: whether it will ever come, and what it did instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracehook import _core
from tracehook.agreement.agreement import Waiting
from tracehook.agreement.alarms import Alarm
from tracehook.agreement.rank_names import NOBODY, RankNames
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.log.calls import REDUCTIONS, TYPES

CALLS = "calls"  # the channel on which ranks compare whether calls run on registered memory
_OVERRUN = 0xFFFFFFFF
FORGOTTEN = "a call that it no longer knows (an exception ended its check, it was long ago, or no window counted yet)"

# 1 + the window's ordinal (0: outside of all windows), and the offset in bytes, or None where only whether it is in a
# window has to be equal. None: that buffer is the rank's own affair.
Place = tuple[int, int | None] | None


def wishes(send: Place, receive: Place) -> list[str]:
    """Say where the buffers of a call lie, as far as that has to be equal on all ranks."""
    sides = {"send": send, "receive": receive}
    return [f"{side} buffer {_where(place)}" for side, place in sides.items() if place is not None]


def in_words(nbytes: int, kind: int, reduction: int, root: int) -> str:
    """Say what a call moves, as far as that has to be equal on all ranks: of bytes that are only moved not their type.

    An operator that the program made has another number on each rank.
    """
    told = [f"{nbytes} bytes"]
    if reduction >= 0:
        told.append(TYPES[kind] if kind < len(TYPES) else f"type {kind}")
        told.append(REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else "the program's own operator")
    if root >= 0:
        told.append(f"root {root}")
    return ", ".join(told)


def overrun(send: Place, receive: Place) -> str | None:
    """Return which buffer begins in a window and ends outside it."""
    sides = {"send": send, "receive": receive}
    return next((side for side, place in sides.items() if place is not None and place[0] == _OVERRUN), None)


def number(call: int) -> int:
    """Return the number of a call as people read it: ranks that were renumbered count from there."""
    return call - _core.RENUMBERED if call >= _core.RENUMBERED else call


def facts(communicator: _core.Communicator, channel: str) -> dict[str, Any]:
    """Return what others have to know of this rank to answer its alarm."""
    return {"channel": channel, "call": communicator.calls, "alone": not communicator.several_callers}


def is_in_windows(communicator: _core.Communicator, call: int | None) -> bool | None:
    """Whether both buffers of a call lay in windows: then NCCL took a symmetric kernel.

    None if this rank has not made the call, or no longer knows it.
    """
    past = communicator.past(call) if call is not None and communicator.calls > call else None
    if past is None:
        return None
    places = [place for place in past[1:3] if place is not None]
    return bool(places) and all(place[0] != 0 for place in places)


def answer(
    alarm: Alarm,
    communicator: _core.Communicator,
    rank: int,
    waiting: Callable[[], list[Waiting]],
    names: RankNames = NOBODY,
) -> RoundVerdict | None:
    """Return how the round ends that `alarm` is about, if this rank has made another call instead of coming."""
    if rank == alarm.rank or communicator.dead:
        return None
    call, calls = alarm.facts["call"], communicator.calls
    asker, own = names.named([alarm.rank]), names.named([rank])
    single = alarm.facts["alone"] and not communicator.several_callers
    if alarm.facts["channel"] == CALLS:
        return _without_memory(alarm, rank, asker, own) if calls > call else None
    if calls > call:
        if alarm.facts["channel"] == "uses":
            return _made(alarm, communicator, asker, own)
        return _passed(alarm, communicator, asker, own) if single else None
    if single and calls == call:
        return _elsewhere(alarm, asker, own, waiting())
    return None


def _made(alarm: Alarm, communicator: _core.Communicator, asker: str, own: str) -> RoundVerdict:
    call = alarm.facts["call"]
    places = [entry for entry in alarm.entries if " buffer " in entry]
    wanted = ", ".join([alarm.topic.removeprefix("placement of "), *places])
    return RoundVerdict(
        "diverged",
        f"{alarm.about}: the ranks differ at call {number(call)}: {own} made {described(communicator, call)}; "
        f"{asker} wants {wanted}. {own} may be inside NCCL, so no rank makes another call on this "
        "communicator: abort the group",
        data=call,
    )


def _without_memory(alarm: Alarm, rank: int, asker: str, own: str) -> RoundVerdict:
    why = f"{own} made call {number(alarm.facts['call'])} on memory that is not registered, and {asker} wants it to be"
    text = f"{alarm.about}: {why}"
    return RoundVerdict("declined", text, data={str(rank): why}, position=alarm.position, topic=alarm.topic)


def _passed(alarm: Alarm, communicator: _core.Communicator, asker: str, own: str) -> RoundVerdict:
    call = alarm.facts["call"]
    return RoundVerdict(
        "mismatch",
        f"{alarm.about}: the ranks are not at the same point: {asker} waits at {alarm.topic!r} before call "
        f"{number(call)}; {own} made call {number(call)} ({described(communicator, call)}) without it; nothing "
        "was registered",
        position=alarm.position,
    )


def _elsewhere(alarm: Alarm, asker: str, own: str, waiting: list[Waiting]) -> RoundVerdict | None:
    mine = [one for one in waiting if one.topology.verdict_key(one.number) != alarm.verdict_key]
    mine = [one for one in mine if one.topology.prefix not in alarm.verdict_key]  # another channel
    if not mine:
        return None
    return RoundVerdict(
        "mismatch",
        f"{alarm.about}: the ranks are not at the same point: {asker} waits at {alarm.topic!r}, {own} "
        f"at {mine[0].post.topic!r}; no rank goes on",
        position=alarm.position,
        data=[(one.topology.verdict_key(one.number), one.post.position) for one in mine],
    )


def described(communicator: _core.Communicator, call: int) -> str:
    """Say what this rank used at a call, if it is one of the last."""
    past = communicator.past(call)
    if past is None:
        return FORGOTTEN
    operation, send, receive, settings = past
    return ", ".join([operation, *wishes(send, receive), *told(settings)])


def told(settings: Sequence[str]) -> list[str]:
    """Return what a call's configuration sets; the rest is NCCL's choice."""
    return [setting for setting in settings if not setting.endswith(" not set")]


def _where(place: tuple[int, int | None]) -> str:
    window, offset = place
    if window == _OVERRUN:
        return "beginning in a window and ending outside it"
    if not window:
        return "outside of all windows"
    return "in a window" if offset is None else f"in window {window - 1} at byte {offset}"

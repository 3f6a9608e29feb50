"""Waits of peers for signals, in words; and who read a peer's memory without the signal that the peer waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tracehook.audit.called import Caller, Wait
from tracehook.log.calls import READ, SIGNAL

ADVICE = (
    "Call PeerGroup.get(tensor), which waits and signals, in place of tensor.get(); or call PeerGroup.signal(rank) "
    "after tensor.get()."
)
UNSENT = "Look at the line where the waiting rank stands, and let the named rank call PeerGroup.signal(rank) for it."
_INSTEAD = "by PeerTensor.get(), which sends no signal"
_MOST_TOLD = 6


def told(wait: Wait) -> str:
    """Say where a rank stands, such as ``PeerGroup.wait for signal 1 of rank 1 (rank 1 sent none)``."""
    other = wait.missing[0].name
    channel = wait.step.call.root // max(1, wait.process.parts[wait.comm].size) - 1
    on = f" on channel {channel}" if channel else ""
    if wait.step.call.operation == "signal":
        what = f"PeerGroup.signal to {other}{on}, which has not waited for signal {wait.number + 1} yet"
        unsent = f"it called {wait.made or 'no'} wait{'' if wait.made == 1 else 's'}"
    else:
        what = f"PeerGroup.wait for signal {wait.number + 1} of {other}{on}"
        unsent = f"{other} sent {f'only {wait.made}' if wait.made else 'none'}"
        unsent += f", and read a tensor of {wait.process.name} {_INSTEAD}" if _reads(wait) else ""
    return f"{what} ({unsent if is_unsent(wait) else f'called by {other}, behind other work'})"


def is_unsent(wait: Wait) -> bool:
    """Whether it is a semaphore, and the other rank has not even called what this one waits for."""
    return wait.step.is_semaphore and wait.made <= wait.number


def readers(waits: Iterable[Wait]) -> list[Caller]:
    """Return who owes a signal to a rank whose memory it read by a call that sends none."""
    return list(dict.fromkeys(other for wait in waits for other in wait.missing if _reads(wait)))


def told_circle(waits: Sequence[Wait]) -> str:
    """Say who waits for which signal of whom, if nobody sent any, and what some called instead."""
    each = [f"{wait.process.name} waits for signal {wait.number + 1} of {wait.missing[0].name}" for wait in waits]
    more = [f"and {len(each) - _MOST_TOLD} more wait"] if len(each) > _MOST_TOLD else []
    found = readers(waits)
    reads = [f"{named(found)} read their tensors {_INSTEAD}: PeerGroup.get(tensor) does"] if found else []
    return "; ".join([*each[:_MOST_TOLD], *more, *reads])


def named(processes: Sequence[Caller]) -> str:
    """Name processes, such as ``ranks 0, 1 and 3``."""
    ordered = sorted(processes, key=lambda each: each.rank if each.rank is not None else -1)
    names = [str(process.rank) for process in ordered if process.rank is not None]
    if len(names) != len(processes):
        return ", ".join(process.name for process in ordered)
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def are_all(waits: Collection[Wait]) -> bool:
    """Whether all of them wait for signals that nobody sent."""
    return all(is_unsent(wait) and wait.step.call.operation == "wait" for wait in waits)


def _reads(wait: Wait) -> bool:
    """Whether the rank that owes a signal has read the memory of the rank that waits, and signalled nothing since."""
    if not is_unsent(wait) or wait.step.call.operation != "wait":
        return False
    own, other = wait.process.parts[wait.comm].rank, wait.missing[0]
    made = [
        step.call.what
        for step in other.in_order
        if step.comm == wait.comm and step.is_transfer and other.parts[wait.comm].peer_of(step.call.root) == own
    ]
    return next((what == READ for what in reversed(made) if what in (READ, SIGNAL)), False)

"""Ranks tell each other that some do not come, and then each writes the stacks of its threads beside its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracehook import _core
from tracehook.agreement.watchdog import STUCK

if TYPE_CHECKING:
    from torch.distributed import Store


class _Told:
    """What this process has still to tell. A moment of Python: no lock."""

    is_stuck = False


class Stuck:
    """For the watchdog of one store."""

    @staticmethod
    def step(store: Store) -> list[list[Any]]:  # noqa: ARG004
        """Tell the others once, if a call of this process hangs."""
        is_stuck, _Told.is_stuck = _Told.is_stuck, False
        return [[]] if is_stuck else []

    @staticmethod
    def hear(told: Sequence[Any]) -> None:  # noqa: ARG004
        """Have the stacks written; this does not wait."""
        _core.ask_stacks()


def tell() -> None:
    """Have all processes write their stacks: a call of this one hangs. Any thread."""
    _core.ask_stacks()  # also if no store answers
    _Told.is_stuck = True


def listeners() -> dict[str, Stuck]:
    """Return what a watchdog hears, by channel."""
    return {STUCK: Stuck()}

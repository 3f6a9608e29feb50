"""Ranks tell each other that some do not come, and then each writes the stacks of its threads beside its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed import Store

from tracehook import _core


class _Told:
    """What this process has still to tell. A moment of Python: no lock."""

    count = 0  # of calls that hang


class Stuck:
    """For the watchdog of one store."""

    def __init__(self) -> None:
        self._told = 0

    def step(self, store: Store) -> list[list[Any]]:  # noqa: ARG002
        """Tell the others once, if a call of this process hangs."""
        before, self._told = self._told, _Told.count
        return [[]] if self._told > before else []

    @staticmethod
    def hear(told: Sequence[Any]) -> None:  # noqa: ARG004
        """Have the stacks written; this does not wait."""
        _core.ask_stacks()


def tell() -> None:
    """Have all processes write their stacks: a call of this one hangs. Any thread."""
    _core.ask_stacks()  # also if no store answers
    _Told.count += 1

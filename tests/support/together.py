"""Ranks that make their calls at the same time, in threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tracehook.agreement.agreement import Agreement
from tracehook.errors import RegistrationError

PATIENCE = 20.0  # seconds after which something that should have happened has not


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make the calls at the same time; return what each returned or raised."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RegistrationError as problem:
            return problem

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def compare(
    members: Sequence[Agreement], wish: str = "a", timeout: float = PATIENCE, position: tuple[int, ...] = ()
) -> list[Any]:
    """Let all compare what they want for windows."""
    return together([partial(one.compare, "windows", [wish], timeout, position) for one in members])

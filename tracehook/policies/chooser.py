"""Asks the chosen policies in their order; the first answer wins."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tracehook.policies.base import Answer, Request
from tracehook.policies.installed import PolicyEntry, find, in_one_line

REMEMBERED = 4096  # requests whose answer is kept; programs have dozens


@dataclass(frozen=True)
class Choice:
    """An answer and who gave it."""

    answer: Answer
    policy: str
    """Name of the policy; ``default`` if none answered."""
    index: int
    """Its position among the chosen ones, from 0; -1 if none answered."""


class Chooser:
    """The policies of these names, loaded once.

    A policy that is missing, cannot be loaded, raises or returns something that is no answer is skipped, and named with
    one line through `report`: once for each policy and kind of problem, not at every call. If no policy answers, the
    answer is :attr:`Answer.SHARED`. May be called from several threads.
    """

    def __init__(self, names: Sequence[str], report: Callable[[str], None]) -> None:
        self._report = report
        self._reported: set[tuple[str, str]] = set()
        self._rows = find(names)
        for row in self._rows:
            if row.problem:
                self._skip(row, "load", row.problem)
        self._remembered = lru_cache(REMEMBERED)(self._ask)

    def choose(self, request: Request) -> Choice:
        """Return the answer to `request`. The policies are asked only if they were not asked the same before."""
        return self._remembered(request)

    def _ask(self, request: Request) -> Choice:
        for index, row in enumerate(self._rows):
            if row.policy is None:
                continue
            try:
                answer = row.policy(request)
            except Exception as problem:
                self._skip(row, "raise", f"raised {in_one_line(problem)} ({_place(problem)})")
                continue
            if isinstance(answer, Answer):
                return Choice(answer, row.name, index)
            if answer is not None:
                self._skip(row, "return", f"returned {type(answer).__name__}, expected an Answer or None")
        return Choice(Answer.SHARED, "default", -1)

    def _skip(self, row: PolicyEntry, kind: str, why: str) -> None:
        if (row.name, kind) not in self._reported:
            self._reported.add((row.name, kind))
            self._report(f"policy {row.name!r} skipped: {why}")


def _place(problem: Exception) -> str:
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"

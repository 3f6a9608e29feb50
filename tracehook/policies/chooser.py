"""Asks the chosen policies in their order; the first answer wins."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tracehook.policies.base import Answer, Request, Threshold
from tracehook.policies.installed import PolicyEntry, find, in_one_line

_MOST_BYTES = 1 << 56  # that the log has place for
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
    answer is :attr:`Answer.ISOLATED`. May be called from several threads.
    """

    def __init__(self, names: Sequence[str], report: Callable[[str], object]) -> None:
        self._report = report
        self._reported: set[tuple[str, str]] = set()
        self._rows = find(names)
        for row in self._rows:
            if row.problem:
                self._skip(row, "load", row.problem)
        self._remembered = lru_cache(REMEMBERED)(self._ask)

    def choose(self, request: Request, without: Set[str] = frozenset()) -> Choice:
        """Return the answer to `request`. The policies are asked only if they were not asked the same before.

        `without`: names of policies that abstain.
        """
        return self._remembered(request, frozenset(without))

    def fingerprints(self) -> dict[str, str | None]:
        """Return what the answers of policies depend on and the ranks have to have alike, by the policy's name.

        None: its function raised.
        """
        found: dict[str, str | None] = {}
        for row in self._rows:
            tell = getattr(row.policy, "fingerprint", None)
            if tell is not None:
                try:
                    found[row.name] = str(tell())
                except Exception as problem:
                    self._skip(row, "raise", f"raised {in_one_line(problem)} ({_place(problem)})")
                    found[row.name] = None
        return found

    def pays(self, operation: str) -> Threshold | None:
        """Return from how many bytes on a call gains by registered memory; None if no policy answers."""
        for row in self._rows:
            tell = getattr(row.policy, "pays", None)
            if tell is None:
                continue
            try:
                answer = _checked_sizes(tell(operation))
            except Exception as problem:
                self._skip(row, "raise", f"raised {in_one_line(problem)} ({_place(problem)})")
                continue
            if answer is not None:
                return answer
        return None

    def _ask(self, request: Request, without: frozenset[str]) -> Choice:
        for index, row in enumerate(self._rows):
            if row.policy is None or row.name in without:
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
        return Choice(Answer.ISOLATED, "default", -1)

    def _skip(self, row: PolicyEntry, kind: str, why: str) -> None:
        if (row.name, kind) not in self._reported:
            self._reported.add((row.name, kind))
            self._report(f"policy {row.name!r} skipped: {why}")


def _checked_sizes(told: Threshold | None) -> Threshold | None:
    if told is None:
        return None
    sizes = tuple(told)
    if len(sizes) != 2 or not all(size is None or (type(size) is int and 0 <= size < _MOST_BYTES) for size in sizes):
        raise ValueError(f"pays returned {told}: expected two sizes, in bytes as an int or None")
    return Threshold(*sizes)


def _place(problem: Exception) -> str:
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"

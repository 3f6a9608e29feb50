"""Who does the pieces of an audit: tasks, which are functions of values that can be sent to another machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracehook.log.lines import LogError


class NotWhole(LogError):
    """A piece of the audit was not done, so nothing is concluded."""


class Workers(Protocol):
    """Take tasks. What stands for a result may be an argument of another task."""

    @property
    def count(self) -> int:
        """How many tasks can run at a time."""

    def share(self, value: object) -> Any:
        """Return what stands for a value that many tasks take."""

    def start(self, about: str, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
        """Start a task; return what stands for each of its results. `about`: what is missing if it is never done."""

    def result(self, of: Any) -> Any:
        """Wait for a result. Raises :class:`NotWhole` if the task was not done, and what the task raised."""


class InProcess:
    """Does each task at once, in this process."""

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def share(self, value: object) -> Any:
        """Return the value."""
        return value

    def start(self, about: str, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
        """Do the task; return its results."""
        del about
        done = task(*arguments)
        return list(done) if results > 1 else [done]

    def result(self, of: Any) -> Any:
        """Return the result."""
        return of


def in_turn(workers: Workers, started: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the first result of each task."""
    return [workers.result(first) for first, *_ in started]

"""What the unit tests share: a registrar with scripted communicators, calls on other threads, and a gate that stays busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tracehook._core import Harness
from tracehook.audit import ring

PATIENCE = 20.0  # seconds after which something that should have happened has not


class Call:
    """One call on a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._outcome: list[Any] = []
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._outcome.append(function(*args))
        except BaseException as problem:
            self._problem = problem

    def returned(self, within: float = 0.05) -> bool:
        """Whether the call has returned; a call that can return does so well within the default."""
        self._thread.join(within)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the call, and return what it returned or raise what it raised."""
        assert self.returned(PATIENCE), "the call hangs"
        if self._problem is not None:
            raise self._problem
        return self._outcome[0]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.0005)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition; fails if it does not come true."""
    return _until


@pytest.fixture
def background() -> Iterator[Callable[..., Call]]:
    """Start a call on another thread; every one of them must have returned when the test ends."""
    started: list[Call] = []

    def start(function: Callable[..., Any], *args: Any) -> Call:
        started.append(Call(function, *args))
        return started[-1]

    yield start
    for call in started:
        call.result()


@pytest.fixture
def harness() -> Iterator[Harness]:
    """Return a registrar of which no scripted communicator may complain."""
    made = Harness()
    yield made
    assert made.violations == 0


@pytest.fixture
def calls_of(harness: Harness) -> Callable[[int], list[tuple[str, int]]]:
    """Return (verb, address) of each call that reached one communicator; a refused one is ``("refused", address)``."""

    def of(pointer: int) -> list[tuple[str, int]]:
        return [
            ("refused" if result else verb, address)
            for communicator, verb, address, _, result in harness.calls()
            if communicator == pointer
        ]

    return of


@pytest.fixture
def events(harness: Harness) -> Callable[..., list[dict[str, Any]]]:
    """Return every event so far, or those of one name, as the log would show them."""

    def of(name: str | None = None) -> list[dict[str, Any]]:
        rows = (ring.fields_of(record) for record in ring.unpack(harness.peek(65536)))
        return [{"event": event, **fields} for event, fields in rows if name in (None, event)]

    return of


@pytest.fixture
def busy_gate(
    harness: Harness, background: Callable[..., Call]
) -> Callable[[int], AbstractContextManager[None]]:
    """Hold the gate of a communicator from another thread for as long as the ``with`` block runs, not for a time.

    A second communicator shares the gate. It is busy with an earlier call, so freeing its segment waits inside the gate
    until it is ready again. A third one tells when that is so: its segments are no longer registered at once.
    """
    holder, probe = 0xB051, 0xB052
    segment = 0x7F0000000000

    @contextmanager
    def hold(pointer: int) -> Iterator[None]:
        for number, sibling in enumerate((holder, probe)):
            harness.create(sibling, device=90 + number, parent=pointer)
        harness.alloc(90, segment, 4096)
        harness.set_in_progress(holder, True)
        inside = background(harness.free, 90, segment, 4096)
        _until(lambda: _is_queued(harness, probe, 91, segment))
        try:
            yield
        finally:
            harness.set_in_progress(holder, False)
            inside.result()
            harness.retire(holder)
            harness.retire(probe)

    return hold


def _is_queued(harness: Harness, pointer: int, device: int, address: int) -> bool:
    before = len(harness.calls())
    harness.alloc(device, address, 4096)
    queued = all(row[0] != pointer for row in harness.calls()[before:])
    harness.free(device, address, 4096)
    return queued

"""What the unit tests share: scripted communicators, calls on other threads, and a gate that stays busy."""

import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from support.records import packed

from tracehook._testing import Harness
from tracehook.log.records import RECORD_BYTES, fields_of, unpack

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
def lives(harness: Harness) -> Callable[[int], bool]:
    """Tell whether a segment of device 0 starts at an address, as far as the ledger knows."""
    return lambda address: any((row.device, row.address) == (0, address) for row in harness.segments())


@pytest.fixture
def events(harness: Harness) -> Callable[..., list[dict[str, Any]]]:
    """Return every event so far, or those of one name, as the log would show them."""

    def of(name: str | None = None) -> list[dict[str, Any]]:
        rows = map(fields_of, unpack(harness.peek(65536)))
        return [{"event": event, **fields} for event, fields in rows if name in (None, event)]

    return of


class _FakeCore:
    """What the journal needs of the native core: events to take, and a note of what was taken."""

    def __init__(self) -> None:
        self.data = b""
        self.drained = 0
        self.lost = 0
        self.ring_removed = 0
        self.log_error, self.log_ended = 0, False
        self._seq = 0

    def push(self, event: str, **given: int) -> None:
        """Add an event, with what the ring would add: number, time and thread."""
        self._seq += 1
        self.data += packed(event, **{"seq": self._seq, "t_ns": 1000 * self._seq, "thread": 4242} | given)

    def drop(self, count: int) -> None:
        self._seq += count
        self.lost += count

    def peek(self, limit: int, skip: int = 0) -> bytes:
        """Return up to `limit` whole events, without the first `skip`."""
        return self.data[skip * RECORD_BYTES : (skip + limit) * RECORD_BYTES]

    def peek_summed(self, limit: int, least: int) -> None:
        """Return nothing: it is never crowded."""

    def mark_drained(self, count: int) -> None:
        self.data = self.data[count * RECORD_BYTES :]
        self.drained += count

    def dropped(self) -> int:
        return self.lost

    def take_calls(self, live: bool = False) -> list[bytes]:  # noqa: ARG002
        """Return nothing: no communicator was called."""
        return []

    def remove_ring_file(self) -> None:
        self.ring_removed += 1

    def stop_log(self, error: int) -> None:
        self.log_error = error

    def end_stopped_log(self) -> None:
        self.log_ended = True

    def ring_file(self, capacity: int = 64) -> bytes:
        """Return the bytes of a ring file that holds the events not yet taken."""
        count = len(self.data) // RECORD_BYTES
        header = struct.pack("<8sIIQQQQQQ", b"THRING02", 4096, 96, capacity, count, 0, self.lost, 0, 4711)
        return header.ljust(4096, b"\0") + self.data.ljust(capacity * RECORD_BYTES, b"\0")


@pytest.fixture
def core() -> _FakeCore:
    """Return a native core of which the test is the event source."""
    return _FakeCore()


@pytest.fixture
def busy_gate(harness: Harness) -> Callable[[int], AbstractContextManager[None]]:
    """Hold the gate of a communicator for as long as the ``with`` block runs: a sibling that shares it makes a call."""
    siblings = itertools.count(0xB051)

    @contextmanager
    def hold(pointer: int) -> Iterator[None]:
        sibling = next(siblings)
        harness.create(sibling, device=90, parent=pointer)
        assert harness.enter(sibling)
        try:
            yield
        finally:
            harness.leave(sibling)
            harness.retire(sibling)

    return hold

"""Carries the steps of rounds out on a store: one connection and one thread for each process, however many groups.

A second worker exists only while two threads are in rounds at the same time. Once the threads of the process have ended
(background.py), a round runs on the thread of its caller: an exit function of the program may still make a collective.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tracehook.agreement import rounds
from tracehook.agreement.rounds import Operation
from tracehook.hook import background
from tracehook.hook.groups import cloned_store
from tracehook.log import clock

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch.distributed import Store

# Seconds after the deadline when a store that has not answered counts as gone. Not fewer: when the wait of a TCPStore
# runs out of time, torch writes a warning and looks up names for it; a bad name server makes that take many seconds.
GRACE = 30.0
# Seconds in which a store that is there may answer late: what torch gives a store by default.
_PATIENCE = 300.0
LONGEST_POLL_INTERVAL = 0.25
# Seconds by which a rank waits longer than the one before it: so that the first writes the time-out, not all at once.
TURN = 0.001
LONGEST_TURN = 2.0
FEW = 2  # keys that are read one by one: to read several at once takes three trips to the store


@dataclass(eq=False)
class Task:
    """The steps of one rank in one round. Shares nothing with later rounds, because it may outlive its caller.

    `timeout` is in seconds. Whoever waits for the outcome gets it from the worker. `turn`: the rank's among those whose
    time may be up together.
    """

    steps: Generator[Operation, Any, Any]
    timeout: float
    removable: Sequence[str] = ()
    turn: int = 0
    trips: int = 0
    abandoned: bool = False  # the process ends
    outcome: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.deadline = clock.monotonic() + self.timeout
        self._end = self.deadline + min(self.turn * TURN, LONGEST_TURN, self.timeout / 8)
        self._claimed: tuple[str, str] | None = None
        self._wanted: Operation | None = None

    def run(self, store: Store) -> Any:
        """Make every operation that the steps ask for; return what they end with, such as a verdict.

        After an exception it begins with the operation that raised.
        """
        answer: Any = None
        try:
            while True:
                self._wanted = self._wanted or self.steps.send(answer)
                answer = self._perform(store, self._wanted)
                self._wanted = None
        except StopIteration as end:
            return end.value

    def clean(self, store: Store) -> None:
        """Do what the caller need not wait for: wake those who do, and remove keys that nobody reads any more."""
        if self._claimed is not None:
            store.set(*self._claimed)
        for key in self.removable:
            store.delete_key(key)

    def _perform(self, store: Any, wanted: Operation) -> Any:
        name, given = wanted
        self.trips += 1
        match name:
            case "count":
                return store.add(*given, 1)
            case "wait":
                return self._wait(store, *given)
            case "claim":
                stands = store.compare_set(given[0], "", given[1])
                # The daemon of a TCPStore without libuv does not wake those who wait for a key that compare_set made.
                self._claimed = given if stands == given[1].encode() else None
                return stands
            case "read" if len(given[0]) > FEW:
                return store.multi_get(*given) if store.check(*given) else []
            case "read" | "peek":
                found = [peeked(store, key) for key in given[0]]
                return found if name == "peek" or all(found) else []
        return getattr(store, name)(*given)

    def _wait(self, store: Store, key: str) -> bool:
        """Wait until a key is there, or the time is up; tell whether it is there."""
        # That of a FileStore looks at its time limit in steps of a whole second.
        if not store.has_extended_api():
            return self._poll(store, key)
        # Rounded up, so that an error before the deadline is a failure of the store. Zero would mean: for ever.
        left = max(1, math.ceil((self._end - clock.monotonic()) * 1000) + 1)
        try:
            store.wait([key], timedelta(milliseconds=left))
        except RuntimeError:
            if clock.monotonic() < self.deadline:
                raise
            return False
        return True

    def _poll(self, store: Store, key: str) -> bool:
        begin = clock.monotonic()
        while not store.check([key]):
            now = clock.monotonic()
            if self.abandoned:
                raise RuntimeError("the process ends")
            if now >= self._end:
                return False
            # At most an eighth longer than the wait had to be, and few questions in a long one.
            clock.sleep(min(LONGEST_POLL_INTERVAL, (now - begin) / 8))
        return True


def run(steps: Generator[Operation, Any, Any], store: Store) -> Any:
    """Make every operation of steps that wait for nothing; return what they end with."""
    task = Task(steps, timeout=0.0)
    result = task.run(store)
    task.clean(store)
    return result


def peeked(store: Store, key: str) -> bytes:
    """Return what stands under a key, and nothing if it is absent: comparing with what no key holds does not wait."""
    found: bytes = store.compare_set(key, "?", "?")
    return found if found != b"?" else b""


def token(store: Store) -> str:
    """Return a name that all who use `store`, with its prefixes, get alike, and nobody else."""
    # Not uuid: a program may have it draw the same numbers again, from its own generator. On a connection of our own: a
    # thread of the program may wait on that of the program, or it is broken.
    wish = "tracehook/token", "", os.urandom(16).hex()
    try:
        standing: bytes = cloned_store(store).compare_set(*wish)
    except RuntimeError:  # perhaps of the connection alone; it may be made twice
        standing = cloned_store(store).compare_set(*wish)
    return standing.decode()


class StoreWorker:
    """A thread with a connection to the store.

    The thread lets a signal (Ctrl-C) through to the caller, and makes the deadline hold even if the machine behind the
    store no longer answers. The connection is our own, because a wait blocks every other user of a connection.
    """

    def __init__(self, store: Store, owner: StoreWorkers) -> None:
        self._store = store
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = background.start(owner, self._serve, "tracehook-agreement", self._tasks, store)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # Ctrl-C came while it was made
            self.end()

    def end(self) -> None:
        """Let the thread end when it has run all that was submitted."""
        self._tasks.put(None)

    def submit(self, task: Task) -> None:
        """Run the steps after all that was submitted before, for nobody to wait for. Here, if there is no thread."""
        self._tasks.put(task)
        if self._thread is None or not self._thread.is_alive():
            self.end()
            self._serve(self._tasks, self._store)

    @staticmethod
    def _serve(tasks: queue.SimpleQueue[Task | None], shared: Store) -> None:
        own: Store | None = None
        while task := tasks.get():
            try:
                own = own or cloned_store(shared, _PATIENCE)
                try:
                    verdict = task.run(own)
                except RuntimeError as failure:  # perhaps of the connection alone; each operation may be made twice
                    if task.abandoned:
                        raise
                    try:
                        own = cloned_store(shared, _PATIENCE)
                    except RuntimeError:
                        raise failure from None  # the store is gone
                    verdict = task.run(own)
                task.outcome.put(verdict)
                task.clean(own)  # nobody waits for this any more
            except BaseException as problem:
                task.outcome.put(problem)
            del task


class StoreWorkers:
    """The workers at one store. One that is free serves the next round; a round that raises leaves none behind."""

    def __init__(self, store: Store | None) -> None:
        self.store = store  # None: for a rank that is alone, which needs none
        self._free: list[StoreWorker] = []
        self._all: weakref.WeakSet[StoreWorker] = weakref.WeakSet()
        self._running: weakref.WeakSet[Task] = weakref.WeakSet()
        self._lock = threading.Lock()

    def submit(self, task: Task) -> None:
        """Run the steps on a worker that is free, or on a new one, for nobody to wait for."""
        worker = self._take()
        worker.submit(task)
        self._give_back(worker)

    def carry_out(self, task: Task) -> Any:
        """Run the steps on a worker that is free, or on a new one; raises what the store raises."""
        worker = self._take()
        with self._lock:
            self._running.add(task)
        worker.submit(task)
        try:
            outcome = task.outcome.get(timeout=max(0.0, task.deadline - clock.monotonic()) + GRACE)
        except queue.Empty:
            outcome = RuntimeError(f"no answer within {GRACE:g} s after the deadline")
        if isinstance(outcome, BaseException):
            raise outcome
        self._give_back(worker)
        return outcome

    def count(self, key: str, timeout: float) -> int:
        """Add one to a counter that only this rank writes, and return it; raises what the store raises."""
        number: int = self.carry_out(Task(rounds.counted(key), timeout))
        return number

    def _take(self) -> StoreWorker:
        with self._lock:
            if self._free:
                return self._free.pop()
            assert self.store is not None
            worker = StoreWorker(self.store, self)
            self._all.add(worker)
            return worker

    def _give_back(self, worker: StoreWorker) -> None:
        with self._lock:
            if not self._free:  # more than one were needed only for a moment
                self._free.append(worker)

    def end_idle(self) -> None:
        """Keep no thread and no connection for a next round, which would begin others."""
        with self._lock:
            idle, self._free = self._free, []
        for worker in idle:
            worker.end()

    def end_soon(self) -> None:
        """At exit: give up every wait."""
        with self._lock:
            workers, running = list(self._all), list(self._running)
        for task in running:
            task.abandoned = True
        for worker in workers:
            worker.end()

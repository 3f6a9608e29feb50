"""Carries the steps of rounds out on a store: one connection and one thread for each process, however many groups.

A second line exists only while two threads are in rounds at the same time.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tracehook.hook.groups import cloned_store
from tracehook.symmetric_memory.hosts import PATIENCE, Board
from tracehook.symmetric_memory.rounds import Operation, Steps
from tracehook.symmetric_memory.verdicts import RoundVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Store

# Seconds after the deadline when a store that has not answered counts as gone. Not fewer: when the wait of a TCPStore
# runs out of time, torch writes a warning and looks up names for it; a bad name server makes that take many seconds.
GRACE = 30.0
POLL_INTERVAL = 0.01
ON_BOARD = {"post", "gather", "publish", "published"}  # operations that need no store


@dataclass
class Task:
    """The steps of one rank in one round. Shares nothing with later rounds, because it may outlive its caller.

    `timeout` is in seconds. Whoever waits for the outcome gets it from the line, or from the watch, which is first.
    """

    steps: Steps
    timeout: float
    removable: Sequence[str] = ()
    board: Board | None = None
    trips: int = 0
    overruled: bool = False
    outcome: queue.SimpleQueue[RoundVerdict | BaseException] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout
        self._wanted: Operation | None = None

    def begin(self) -> RoundVerdict | None:
        """Make the operations up to the first one on the store; return the verdict if the board had it."""
        answer: Any = None
        try:
            while True:
                self._wanted = self.steps.send(answer)
                if self._wanted.name not in ON_BOARD:
                    return None
                answer = self._perform_on_board(self._wanted)
        except StopIteration as end:
            verdict: RoundVerdict = end.value
            return verdict

    def run(self, store: Store) -> RoundVerdict:
        """Make every operation that the steps still ask for; return the verdict that they end with."""
        wanted = self._wanted or next(self.steps)
        try:
            while True:
                if wanted.name in ON_BOARD:
                    answer = self._perform_on_board(wanted)
                else:
                    self.trips += 1
                    answer = self._perform(store, wanted)
                wanted = self.steps.send(answer)
        except StopIteration as end:
            verdict: RoundVerdict = end.value
            return verdict

    def overrule(self, verdict: RoundVerdict) -> None:
        """Give the caller the verdict that stands, while the line still waits for something else."""
        self.overruled = True
        self.outcome.put(verdict)

    def clean(self, store: Store) -> None:
        """Remove this rank's keys of rounds that nobody reads any more."""
        for key in self.removable:
            store.delete_key(key)

    def _perform_on_board(self, wanted: Operation) -> Any:
        assert self.board is not None
        patience = min(PATIENCE, self.timeout / 8)
        match wanted:
            case Operation("post", (number, text)):
                return self.board.post(number, text)
            case Operation("gather", (number,)):
                return self.board.gather(number, patience)
            case Operation("publish", (number, text)):
                return self.board.publish(number, text)
            case Operation("published", (number,)):
                return self.board.published(number, patience)
        raise AssertionError(wanted)

    def _perform(self, store: Store, wanted: Operation) -> Any:
        match wanted:
            case Operation("set", (key, value)):
                return store.set(key, value)
            case Operation("check", (keys,)):
                return store.check(keys)
            case Operation("wait", (keys,)):
                return self._wait(store, keys)
            case Operation("read", (keys,)):
                return store.multi_get(keys)
            case Operation("claim", (key, value)):
                return store.compare_set(key, "", value)
            case Operation("peek", (key,)):
                # Comparing with what the key never holds reads it without waiting for it.
                return store.compare_set(key, "?", "?")
            case Operation("keys"):
                return set(store.list_keys())
        raise AssertionError(wanted)

    def _wait(self, store: Store, keys: list[str]) -> bool:
        """Wait until all keys are there, or the time is up; tell whether they are there."""
        if not store.has_extended_api():
            # A FileStore would poll as well, and look at its time limit in steps of a whole second.
            while not store.check(keys):
                if time.monotonic() >= self.deadline:
                    return False
                time.sleep(POLL_INTERVAL)
            return True
        # Rounded up, so that an error before the deadline is a failure of the store. Zero would mean: for ever.
        left = max(1, math.ceil((self.deadline - time.monotonic()) * 1000) + 1)
        try:
            store.wait(keys, timedelta(milliseconds=left))
        except RuntimeError:
            if time.monotonic() < self.deadline:
                raise
            return False
        return True


class Line:
    """A thread with a connection to the store.

    The thread lets a signal (Ctrl-C) through to the caller, and makes the deadline hold even if the machine behind the
    store no longer answers. The connection is our own, because a wait blocks every other user of a connection.
    """

    def __init__(self, store: Store) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(self._tasks, store), name="tracehook-agreement", daemon=True).start()

    def __del__(self) -> None:
        self._tasks.put(None)

    def submit(self, task: Task) -> None:
        """Run the steps after all that was submitted before, for nobody to wait for."""
        self._tasks.put(task)

    def carry_out(self, task: Task) -> RoundVerdict:
        """Run the steps; raises what the store raises. A line on which this has raised is of no more use."""
        self.submit(task)
        try:
            outcome = task.outcome.get(timeout=max(0.0, task.deadline - time.monotonic()) + GRACE)
        except queue.Empty:
            outcome = RuntimeError(f"no answer within {GRACE:g} s after the deadline")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @staticmethod
    def _serve(tasks: queue.SimpleQueue[Task | None], shared: Store) -> None:
        own: Store | None = None
        while task := tasks.get():
            try:
                own = own or cloned_store(shared)
                task.outcome.put(task.run(own))
                task.clean(own)  # nobody waits for this any more
            except BaseException as problem:
                task.outcome.put(problem)
            del task


class Lines:
    """The lines to one store. One that is free serves the next round; a round that raises leaves none behind."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._free: list[Line] = []
        self._lock = threading.Lock()

    def submit(self, task: Task) -> None:
        """Run the steps on a line that is free, or on a new one, for nobody to wait for."""
        with self._lock:
            line = self._free.pop() if self._free else Line(self.store)
            line.submit(task)
            self._free.append(line)

    def carry_out(self, task: Task) -> RoundVerdict:
        """Run the steps on a line that is free, or on a new one, unless the board is enough; see `Line.carry_out`."""
        shown = task.begin()
        if shown is not None:
            return shown
        with self._lock:
            line = self._free.pop() if self._free else Line(self.store)
        verdict = line.carry_out(task)
        with self._lock:
            if not self._free and not task.overruled:  # more than one were needed only for a moment
                self._free.append(line)
        return verdict

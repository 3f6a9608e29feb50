"""The log: a thread that takes events from the ring and writes them, one JSON line each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tracehook.log import calls, clock, records, tallies, threads
from tracehook.log.bound import NO_BOUND, Bound
from tracehook.log.encoding import dumps
from tracehook.log.event_counts import EventCounts
from tracehook.log.parts import Parts, now
from tracehook.log.stderr import warn, words_of
from tracehook.log.tables import Reason


class Aside(Protocol):
    """Hears every event, and says what else is to be logged. The log's thread calls it."""

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event: of the ring, or a line without a `seq`. Never waits, never raises."""

    def look(self, asked: bool) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the events to write now, with their fields. Never raises.

        `asked`: somebody waits for the log, so what was put off for a while is looked for now.
        """


SCHEMA = "1.26"
_BATCH = 4096
_PERIOD = 0.1  # seconds between two looks at the ring
_CROWDED = 8  # an 8th of the ring waits: from here on the events of segments that came and went are summed
_CROWD_PERIOD = 0.005  # seconds to the next look after a crowd
_JUMP = 1_000_000_000  # nanoseconds by which the wall clock differs from the clock of the events all at once
_PATIENCE = 5.0  # seconds in which the thread must have written a line, for others to wait on for it


class Journal:
    """Drains the ring into one log file, or, without a directory, into warnings on stderr.

    One instance per process, one thread of its own. `core` is the native module (or anything with ``peek(limit)``,
    ``mark_drained(count)``, ``dropped()``, ``take_calls(live)`` and ``stop_log(error)``). If writing fails, for example
    on a full disk, it says so once on stderr and stops; the job goes on, and the newest events stay in the ring.

    Once the thread was started, it alone writes: the file server may be dead, and whoever calls must not hang with it.

    `descriptor` is that of `path`, open to append to; without it the file is made.
    The thread calls `at_birth` when there is a new communicator of several ranks. It must not wait there.
    What `aside` says is written beside the events of the ring, without a `seq`.
    """

    def __init__(
        self,
        core: Any,
        path: Path | None,
        begin: Mapping[str, Any],
        descriptor: int | None = None,
        at_birth: Callable[[], None] = lambda: None,
        aside: Aside | None = None,
        bound: Bound = NO_BOUND,
    ) -> None:
        self._core = core
        self._at_birth = at_birth
        self._aside = aside
        self.facts = dict(begin)  # of the process, and its rank as soon as that is known
        self.tally: EventCounts | None = None  # of all events that the thread takes, if somebody counts them
        self.path = path
        # When the file cannot be written: events that the ring keeps although stderr has their warnings.
        self._kept = bound.ring_events // 2
        self._crowd = max(bound.ring_events // _CROWDED, 1)
        self._file: Parts | None = None
        self._lock = threading.Lock()  # one drain at a time
        self._thread: threads.Thread | None = None
        self._turns = threading.RLock()  # of the next four
        self._turn = threading.Condition(self._turns)
        self._asked = 0  # flushes
        self._answered = 0
        self._finish: Callable[[], Mapping[str, Any]] | None = None  # set when the log is to end
        self._lines = 0
        self._said_lock = threading.Lock()  # reasons
        self.reasons: list[str] = []  # names, in the order in which they were first said
        self.texts: dict[int, Mapping[str, str]] = {}  # fields of events of exceptions, which the ring cannot hold
        self._reported_drops = 0
        # Events that stay in the ring, because the file cannot be written, but whose warnings were said.
        self._told = 0
        self._was_crowded = False
        self._wall_ns = clock.time_ns() - clock.monotonic_ns()  # of the wall clock at 0 of the events' clock; last look
        self._stopped = False
        self._closed = False
        self.failed: str | None = None
        if path is not None:
            self._open(path, begin, descriptor, bound)

    def _open(self, path: Path, begin: Mapping[str, Any], descriptor: int | None, bound: Bound) -> None:
        first = {"event": "trace.begin", "schema": SCHEMA, "t_ns": clock.monotonic_ns(), "time": now(), **begin}
        try:
            self._file = Parts(path, descriptor, bound)
            self._file.begin(first)
        except Exception as problem:
            self._give_up(problem)

    def start(self) -> None:
        """Start the thread. It never keeps the interpreter from ending."""
        self._thread = threads.Thread(self._run, "tracehook-log")
        self._thread.start()

    def stop_thread(self) -> None:
        """End the thread, not the log: from then on :meth:`flush` writes, on its caller's thread. For measurements."""
        with self._turns:
            self._stopped = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._turns:
                self._turn.wait_for(
                    lambda: self._asked > self._answered or self._finish is not None or self._stopped,
                    _CROWD_PERIOD if self._was_crowded else _PERIOD,
                )
                asked, finish = self._asked, self._finish
            if self._stopped:
                return
            with self._lock:
                self._was_crowded = False
                self._drain()
                self._write_calls()
                if finish is not None:
                    self._end(finish)
                else:
                    self._look_aside(asked > self._answered)
                    self._look_at_clock()
            with self._turns:
                self._answered = asked
                self._turn.notify_all()
            if finish is not None:
                return

    def _look_aside(self, asked: bool) -> None:
        for event, fields in self._aside.look(asked) if self._aside is not None else ():
            if event == "rank.known":
                self.facts["rank"] = fields["rank"]
            self._line(event, **fields)

    def _look_at_clock(self) -> None:
        """Log that somebody set the wall clock: readers tell by it when things were, and compare hosts."""
        before = clock.monotonic_ns()
        wall_ns = clock.time_ns() - before
        if clock.monotonic_ns() - before > _JUMP // 10:
            return  # the thread stood still in between
        step, self._wall_ns = wall_ns - self._wall_ns, wall_ns
        if abs(step) >= _JUMP:
            self._line("clock.jumped", seconds=round(step / 1e9))

    def written(self) -> int | None:
        """Return how many bytes the log has got so far, with what it threw away; None without one."""
        return self._file.written if self._file is not None else None

    def _has_thread(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive() and not thread.is_current()

    def flush(self) -> int:
        """Write everything that is in the ring now. Returns the number of events that the caller wrote itself."""
        if self._thread is not None and self._thread.is_current():
            return 0  # an object of the program has ended here, in the middle of a line perhaps
        if not self._has_thread():
            with self._lock:
                return 0 if self._closed else self._drain()
        with self._turns:
            self._asked += 1
            asked = self._asked
            self._turn.notify_all()
        self._wait_for_thread(lambda: self._answered >= asked)
        return 0

    def _wait_for_thread(self, is_done: Callable[[], bool]) -> bool:
        """Wait for the thread as long as it writes lines; return whether it is done."""
        lines = -1
        with self._turns:
            while not is_done() and self._has_thread() and self._lines != lines:
                lines = self._lines
                self._turn.wait_for(is_done, _PATIENCE)
            return is_done()

    def _drain(self) -> int:
        written = self._drain_crowd()
        while data := self._core.peek(_BATCH, self._told):
            written += self._write(data)
            written += self._drain_crowd()
            if self._told > self._kept:  # or else the ring would fill up, and the next warning would not be said
                self._core.let_go(self._told - self._kept)
                self._told = self._kept
        if self.failed is None:
            self._report_drops()
        return written

    def _drain_crowd(self) -> int:
        """Write what waits while it is so much that the ring may run full: sums of what came and went."""
        written, most = 0, 2 * self._crowd
        while self._file is not None and not self._told and (crowd := self._core.peek_summed(most, self._crowd)):
            data, read, last, (events, segments, size, registrations, ranges) = crowd
            self._was_crowded = True
            written += self._write(data, mark=False)
            if self._told:  # the file takes no more, so all of it stays in the ring
                self._told = read
                break
            if events:
                if self.tally is not None:
                    self.tally.take_summed(segments, registrations, ranges)
                self._line(
                    "log.summed",
                    count=events,
                    segments=segments,
                    bytes=size,
                    registrations=registrations,
                    ranges=ranges,
                    until_seq=last,
                )
            self._core.mark_drained(read)
        return written

    def _write(self, data: bytes, mark: bool = True) -> int:
        count = 0
        for record in records.unpack(data):
            if self.tally is not None:
                self.tally.take(record)
            name, fields = records.fields_of(record)
            if name in ("python.exception", "thread.exception"):
                fields |= self.texts.pop(record.members()["texts"], {})
            self._tell(name, fields)
            if self._aside is not None:
                self._aside.hear(name, fields)
            if self.path is None or self._write_line(name, fields):
                count += 1
            else:
                # No file to write to any more: it stays in the ring, for whoever reads that, but it was told.
                self._told += 1
        if mark:
            self._core.mark_drained(count)
        return count

    def _write_line(self, name: str, fields: dict[str, Any]) -> bool:
        if self._file is None:
            return False
        try:
            self._file.write(dumps({"event": name, **fields}) + b"\n")
            self._file.remember(name, fields)
        except Exception as problem:  # the disk, text that JSON cannot hold, an audit hook of the program
            self._give_up(problem)
            return False
        self._lines += 1
        return True

    def _tell(self, name: str, fields: dict[str, Any]) -> None:
        if name in ("hook.unsupported", "hook.conflict"):
            self.say_reason(Reason(name, fields["reason"], fields["advice"]))
        elif name == "communicator.pending" and fields.get("ranks", 2) > 1:
            self._tell_of_birth()
        elif text := words_of(name, fields):
            warn(text)

    def _tell_of_birth(self) -> None:
        try:
            self._at_birth()
        except Exception as problem:  # what it loads is there no more (chroot, another user): the log goes on
            self._at_birth = lambda: None
            warn(f"this process does not hear what other ranks ask: {problem}")

    def say_reason(self, reason: Reason, detail: str = "") -> None:
        """Say on stderr, the first time, why the hook stands aside and what to do."""
        with self._said_lock:
            if reason.name in self.reasons:
                return
            self.reasons.append(reason.name)
        warn(f"{reason.event}: {detail + ': ' if detail else ''}{reason.advice}")

    def _report_drops(self) -> None:
        dropped = self._core.dropped()
        if dropped > self._reported_drops:
            lost = dropped - self._reported_drops
            if not self._reported_drops:
                warn(f"the ring was full, {lost} events are not in the log")
            self._reported_drops = dropped
            self._line("log.dropped", count=lost)

    def _write_calls(self, live: bool = False) -> None:
        """Write what communicators were called for: those that have ended, or all."""
        for slot in self._core.take_calls(live):
            if (found := calls.unpack(slot)) is not None:
                self._line("communicator.calls", **calls.fields_of(found))
            if (counted := tallies.unpack(slot, os.environ)) is not None:
                self._line("communicator.paths", **tallies.fields_of(counted))

    def _line(self, event: str, **fields: Any) -> None:
        line = {"t_ns": clock.monotonic_ns(), **fields}
        if self._aside is not None:
            self._aside.hear(event, line)
        self._write_line(event, line)

    def _give_up(self, problem: Exception) -> None:
        path = self.path if self._file is None else self._file.path
        self.failed = f"{path}: {getattr(problem, 'strerror', None) or problem}"
        self._file = None
        self._core.stop_log(getattr(problem, "errno", None) or -1)
        warn(f"no log from here on, {self.failed}; the job goes on")

    def close(self, finish: Callable[[], Mapping[str, Any]]) -> None:
        """Write what is left, then ``trace.end`` with the counts of `finish`. Makes no call into CUDA or NCCL."""
        has_thread = self._has_thread()
        with self._turns:
            self._finish = finish
            self._turn.notify_all()
        if has_thread and not self._wait_for_thread(lambda: self._closed) and self._has_thread():
            if self.path is None:
                return
            warn(
                f"{self.path} takes no more lines, so this log has no end: what is missing is in its ring; "
                "is its file server alive?"
            )
            return
        if self._thread is not None and not self._thread.is_current():
            self._thread.join(_PATIENCE)  # it has nothing left to do
        with self._lock:
            if not self._closed:
                self._drain()
                self._end(finish)

    def _end(self, finish: Callable[[], Mapping[str, Any]]) -> None:
        complete = self._file is not None
        self._write_calls(live=True)
        self._line("trace.end", dropped=self._core.dropped(), **finish())
        self._closed = True
        if complete and self._file is not None:
            self._core.remove_ring_file()
        elif self.failed is not None:
            self._core.end_stopped_log()

    def abandon(self) -> None:
        """In a forked child: the file and the thread are the parent's; forget them without touching either."""
        self.path = None
        self._file = None

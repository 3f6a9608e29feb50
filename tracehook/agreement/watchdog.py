"""No rank waits alone: a rank that waits too long says so where all processes look, and those that know why answer.

README.md says how. A rank that is merely late knows nothing yet, and the alarm stays open until the round is over.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracehook.agreement import rounds
from tracehook.agreement.alarms import Alarm, AlarmFeed, alarm_of, put
from tracehook.agreement.store_worker import peeked, run, token
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.hook import background
from tracehook.hook.groups import cloned_store
from tracehook.log import clock, threads
from tracehook.log.stderr import warn

if TYPE_CHECKING:
    from torch.distributed import Store

    from tracehook.agreement.agreement import Waiting

TICK = 0.25  # seconds between two looks at what this process itself waits for
LOOK = 1.0  # seconds between two looks at the alarms of others
SAID_AFTER = 1.0  # seconds in a round after which the log says so
OPEN = 60.0  # seconds after the end of its round's time that an alarm is kept
STUCK = "stuck"  # the channel on which a rank tells that ranks do not come: all write their stacks then
LONGEST_PAUSE = 60.0  # seconds between two tries to reach a store that does not answer


def _outlives_its_groups() -> bool:
    """Whether the store is that of torchrun's agent, so that what stays in it stays until the job ends."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


class FollowedRound(NamedTuple):
    """A round of this process, what to ask the ranks if it takes long, and what writes events of its communicator."""

    waiting: Waiting
    alarm: Alarm
    log: Callable[[str], None]


class Listener(Protocol):
    """Compares something else in the background. All is called on the watchdog's thread."""

    def step(self, store: Store) -> Sequence[Sequence[Any]]:
        """Do what there is to do each second; return what to tell all processes."""

    def hear(self, told: Sequence[Any]) -> None:
        """Take what a process, perhaps this one, has told."""


class Subject(Protocol):
    """A communicator of this process, as the watchdog knows it. All is called on the watchdog's thread."""

    def step(self, store: Store) -> Alarm | None:
        """Do what there is to do each second; return what to ask the ranks."""

    def answer(self, alarm: Alarm, store: Store) -> RoundVerdict | None:
        """Return how the round ends that an alarm is about, if this process knows that it cannot end well."""

    def apart(self, verdict: RoundVerdict) -> None:
        """The ranks can no longer be level."""

    def missed(self, verdict_key: str, verdict: RoundVerdict) -> None:
        """Some ranks did not come to the round with that key, and the others went on without it."""

    def has_come_to(self, verdict_key: str) -> bool:
        """Whether this process is, or was, in the round with that key."""

    def is_over(self) -> bool:
        """Whether the communicator is gone."""

    def end(self, store: Store) -> None:
        """Remove what nobody needs any more."""


class Watchdog:
    """Follows the rounds of this process and the alarms of all processes, on one thread.

    `store` is a connection on which nobody waits. Any thread. `know` is called with the key of a communicator that an
    alarm is about and that is not watched: it calls :meth:`watch` if this process has it. `is_left` tells whether no
    group has the store any more: then the watchdog ends with the last communicator, and calls `on_end`. `listeners`,
    by channel, compare something else at the same store. `patience`: seconds after which a rank that waits says so.
    `name`: the token of the store, by which the watchdog knows it again.
    """

    def __init__(
        self,
        store: Store,
        know: Callable[[str], None] = lambda _: None,
        is_left: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
        listeners: Mapping[str, Listener] | None = None,
        patience: float = 60.0,
        name: str = "",
    ) -> None:
        self._store = store
        self._know = know
        self._own_name = name
        self._is_replaced = False  # another store is at its port
        self._is_left = is_left
        self._on_end = on_end
        self._listeners = listeners or {}
        self._patience = patience
        self._changed = threading.Lock()
        self._over = threading.Event()
        self.has_begun = False
        self.has_ended = False  # nobody needs the store, or it is gone and another one is in its place
        self._subjects: dict[str, Subject] = {}
        self._numbers = itertools.count()
        self._waiting: dict[int, FollowedRound] = {}
        self._open: dict[str, tuple[Alarm, float]] = {}  # by verdict key: alarms that are not over yet
        self._raised: dict[int, str] = {}  # of self._waiting, those about which there is an alarm; see _raise()
        self._logged: set[int] = set()  # of self._waiting, those of which the log says that they take long
        self._said: set[int] = set()  # of self._waiting, those of which a line said who is missing
        self._feed = AlarmFeed()
        self._thread: threads.Thread | None = None

    def watch(self, key: str, subject: Subject) -> None:
        """Look after communicator `key`."""
        with self._changed:
            self._subjects[key] = subject
        self.start()

    def start(self) -> None:
        """Begin to look for the alarms of others."""
        with self._changed:
            if self._thread is None or self.has_ended:
                thread = background.start(self, self._run, "tracehook-watchdog")
                if thread is not None:
                    self.has_begun, self.has_ended = True, False
                    self._thread = thread

    def end_soon(self) -> None:
        """At exit: look no more."""
        self._over.set()

    @contextlib.contextmanager
    def following(
        self, key: str, waiting: Waiting, facts: Mapping[str, Any], log: Callable[[str], None]
    ) -> Iterator[None]:
        """Look after a round of communicator `key` for the time of the body. `log` writes an event of that name."""
        number, followed = next(self._numbers), FollowedRound(waiting, alarm_of(key, waiting, facts), log)
        with self._changed:
            self._waiting[number] = followed
        try:
            yield
        finally:
            with self._changed:
                del self._waiting[number]
                if number in self._logged:
                    self._logged.remove(number)
                    followed.log("agreement.waited")

    def rounds_of(self, key: str) -> list[Waiting]:
        """Return the rounds of this process on communicator `key` that are running now."""
        with self._changed:
            return [each.waiting for each in self._waiting.values() if each.alarm.key == key]

    def _run(self) -> None:
        store: Store | None = self._store
        due = 0.0
        failures = 0
        while not self._over.wait(TICK) and not self._is_done(failures):
            self._log_long_waits()
            try:
                if store is None:
                    store = self._connected()
                self._look_after_own(store)
                # Whoever asked looks for answers more often.
                is_due = clock.monotonic() >= due or self._has_asked()
                if is_due:
                    due = clock.monotonic() + LOOK
                    store = self._step(store)
                    self._look_at_others(store)
                failures = 0
            except RuntimeError:  # the store is gone, or just now unable: the rounds themselves tell what that means
                store = None
                failures = min(failures + 1, 10)
                due = clock.monotonic() + min(LONGEST_PAUSE, LOOK * 2**failures)
                while not self._is_done(failures) and clock.monotonic() < due and not self._over.wait(TICK):
                    self._log_long_waits()
            except Exception as problem:
                warn(f"looking after rounds that wait failed: {type(problem).__name__}: {problem}")
                due = clock.monotonic() + LONGEST_PAUSE
        if not self._over.is_set():
            self._on_end()

    def _connected(self) -> Store:
        """Return a new connection to the store; raises RuntimeError if it is gone."""
        store = cloned_store(self._store)
        if self._own_name and token(store) != self._own_name:
            self._is_replaced = True
            raise RuntimeError("a newer store has this port now, and another watchdog reads that store")
        return store

    def _is_done(self, failures: int) -> bool:
        """Whether nothing is watched, and nobody needs the store. One that fails, or ends now, keeps its keys.

        The store ends with the rank that has it. If a watchdog asks it then, torch prints traces, or waits for 5 s.
        """
        with self._changed:
            is_left = self._is_left()
            keeps = bool(failures) or (is_left and not _outlives_its_groups())
            watched = [one for one in self._subjects.values() if not (keeps and one.is_over())]
            self.has_ended = self._is_replaced or (not watched and not self._waiting and is_left)
            return self.has_ended

    def _has_asked(self) -> bool:
        return bool(self._raised) or any(alarm.rank == 0 and "first" in alarm.facts for alarm, _ in self._open.values())

    def _log_long_waits(self) -> None:
        now = clock.monotonic()
        with self._changed:
            for number, each in self._waiting.items():
                if now - each.waiting.since >= SAID_AFTER and number not in self._logged:
                    self._logged.add(number)
                    each.log("agreement.waits")

    def _look_after_own(self, store: Store) -> None:
        now = clock.monotonic()
        with self._changed:
            late = [
                (number, each.waiting, each.alarm)
                for number, each in self._waiting.items()
                if now - each.waiting.since >= each.alarm.patience
            ]
            over = [number for number in self._raised if number not in self._waiting]
            self._said &= self._waiting.keys()
        for number in over:
            if key := self._raised.pop(number):
                store.delete_key(key)
        for number, waiting, alarm in late:
            asked = self._raised.get(number)
            if asked is None:
                self._raised[number] = self._raise(store, alarm)
            elif asked and now - waiting.since >= self._patience and number not in self._said:
                self._said.add(number)
                if peeked(store, asked).decode() == str(alarm.rank):  # one says it for all
                    self._say_missing(store, waiting)

    def _say_missing(self, store: Store, waiting: Waiting) -> None:
        """Say once which ranks a round of this process waits for."""
        topology = waiting.topology
        seconds = clock.monotonic() - waiting.since
        late = run(rounds.missing(topology, waiting.number), store)
        if late and not store.check([topology.verdict_key(waiting.number)]):
            warn(
                f"{topology.about}: {topology.names.named(late)} did not come to {waiting.post.topic!r} yet; "
                f"{topology.who} has waited for {seconds:.0f} s, and waits on, for at most {topology.timeout:g} s "
                "(the time-out of the group)"
            )
            put(store, json.dumps([STUCK]))

    @staticmethod
    def _raise(store: Store, alarm: Alarm) -> str:
        """Ask the other ranks, unless one asks the same; return the key that says so if this rank wrote it."""
        same = json.dumps(alarm._replace(rank=0))
        key = f"{alarm.verdict_key}/asked/{hashlib.sha256(same.encode()).hexdigest()[:16]}"
        if store.check([key]):  # two ranks that ask in one moment both do, which only makes one alarm more
            return ""
        put(store, json.dumps(alarm))  # first: a rank that dies in between is not relied on
        store.set(key, str(alarm.rank))
        return key

    def _waits_for(self, verdict_key: str) -> bool:
        with self._changed:
            return any(each.alarm.verdict_key == verdict_key for each in self._waiting.values())

    def _step(self, store: Store) -> Store:
        """Do what there is to do each second; return the connection to go on with."""
        with self._changed:
            over = {key: subject for key, subject in self._subjects.items() if subject.is_over()}
        if over:
            # Perhaps the store has ended, and at a connection that it had torch would write a long warning.
            store = self._connected()
        for key, subject in over.items():
            subject.end(store)
            with self._changed:
                if self._subjects.get(key) is subject:
                    del self._subjects[key]
        with self._changed:
            subjects = list(self._subjects.values())
        for subject in subjects:
            alarm = subject.step(store)
            if alarm is not None:
                put(store, json.dumps(alarm))
        for channel, listener in self._listeners.items():
            for told in listener.step(store):
                put(store, json.dumps([channel, *told]))
        return store

    def _look_at_others(self, store: Store) -> None:
        self._hear(store)
        for alarm, until in list(self._open.values()):
            if self._settle(store, alarm) or clock.monotonic() >= until:
                del self._open[alarm.verdict_key]

    def _hear(self, store: Store) -> None:
        for text in self._feed.news(store):
            told = json.loads(text)
            if told[0] in self._listeners:
                self._listeners[told[0]].hear(told[1:])
            elif len(told) == len(Alarm._fields):  # else one of another version of tracehook, which the rounds say
                alarm = Alarm(*told)
                self._open[alarm.verdict_key] = alarm, clock.monotonic() + alarm.timeout + OPEN

    def _settle(self, store: Store, alarm: Alarm) -> bool:
        """Answer an alarm if this process can; tell whether it is over."""
        subject = self._subjects.get(alarm.key)
        if subject is None:
            self._know(alarm.key)
            subject = self._subjects.get(alarm.key)
        if subject is None:
            return False  # this process may get the communicator yet
        # Whoever is in the round itself need not ask the store again and again whether it is over.
        if self._waits_for(alarm.verdict_key) and subject.answer(alarm, store) is None:
            return False
        if not store.check([alarm.verdict_key]):
            if subject.has_come_to(alarm.verdict_key) and not self._waits_for(alarm.verdict_key):
                return True  # two rounds later nobody needs the verdict any more, so its key is gone
            proposal = subject.answer(alarm, store)
            if proposal is None:
                return False
            # Both rounds end here, or one rank would go on while the other still waits.
            others = dict(proposal.data) if proposal.kind == "mismatch" and proposal.data else {}
            if any(store.check([key]) for key in others):
                return False  # a rank that is still in a round that is over only has not heard so yet
            for key, position in others.items():
                run(rounds.claim(key, proposal._replace(position=position, data=None)), store)
            run(rounds.claim(alarm.verdict_key, proposal), store)
        verdict = RoundVerdict.read(peeked(store, alarm.verdict_key))
        if verdict.kind == "timeout":
            verdict = subject.answer(alarm, store) or verdict  # too late for the round, not for this rank
        if verdict.kind in ("diverged", "differed") or (verdict.kind, alarm.facts["channel"]) == ("timeout", "uses"):
            subject.apart(verdict)
        elif verdict.kind in ("timeout", "mismatch"):
            subject.missed(alarm.verdict_key, verdict)
        return True

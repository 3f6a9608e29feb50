"""One process of each host asks the store for alarms; each process hears each alarm once, whoever dies meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tracehook.symmetric_memory import alarm, alarm_feed, alarm_file, hosts, rounds
from tracehook.symmetric_memory.agreement import Waiting
from tracehook.symmetric_memory.alarm import Watch
from tracehook.symmetric_memory.alarm_feed import COUNT_KEY, LOOKOUTS_KEY, AlarmFeed
from tracehook.symmetric_memory.lines import Task
from tracehook.symmetric_memory.meeting import Meeting
from tracehook.symmetric_memory.part import Part
from tracehook.symmetric_memory.verdicts import Post

SHARD_KEY = f"{COUNT_KEY}/shard"


class _Killed(BaseException):
    """The process dies here."""


class _Store:
    """What a feed uses of a store. `trouble` is called before and after each operation, and may raise."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.operations: Counter[str] = Counter()  # by key
        self.trouble: Callable[[], None] = lambda: None

    def _operation(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        self.operations[key] += 1
        self.trouble()
        value = change(self.values.get(key))
        if value is not None:
            self.values[key] = value
        self.trouble()
        return value

    def add(self, key: str, value: int) -> int:
        return int(self._operation(key, lambda old: str(int(old or b"0") + value).encode()) or 0)

    def set(self, key: str, value: str) -> None:
        self._operation(key, lambda _: value.encode())

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        def change(old: bytes | None) -> bytes | None:
            stands = old if old is not None else b"" if not expected else None
            return desired.encode() if stands == expected.encode() else old

        value = self._operation(key, change)
        return value if value is not None else expected.encode()

    def put(self, *words: str) -> None:
        """Raise alarms."""
        for word in words:
            _put(self, word)

    def taken(self) -> dict[str, int]:
        """Return the operations since the last time, by key."""
        counted, self.operations = self.operations, Counter()
        return dict(counted)


class _Clock:
    """The time of all feeds of a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.fixture(autouse=True)
def place(monkeypatch: Any, tmp_path: Path) -> Path:
    """Return the folder that is the shared memory of all hosts."""
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setattr(hosts, "SHARED_MEMORY", place)
    return place


@pytest.fixture(autouse=True)
def clock(monkeypatch: Any) -> _Clock:
    """Return a clock that stands, so that no lookout seems quiet unless a test lets it."""
    clock = _Clock()
    for module in (alarm_feed, alarm_file):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def store() -> _Store:
    """Return a store that counts."""
    return _Store()


Feeds = Callable[..., list[AlarmFeed]]


@pytest.fixture
def feeds() -> Iterator[Feeds]:
    """Make the feeds of processes of one host."""
    made: list[AlarmFeed] = []

    def make(count: int, host: str = "h") -> list[AlarmFeed]:
        made.extend(AlarmFeed(lambda _: f"token {host}") for _ in range(count))
        return made[-count:]

    yield make
    for feed in made:
        feed.close()


def _put(store: Any, word: str) -> None:
    store.set(f"{COUNT_KEY}/{store.add(COUNT_KEY, 1)}", json.dumps([word]))


def _heard(feed: AlarmFeed, store: Any, **how: bool) -> list[str]:
    return [word for text in feed.news(store, **how) for word in json.loads(text)]


def _die(feed: AlarmFeed) -> None:
    """Do what the kernel does for a process that is killed."""
    feed.forget()


def _file(place: Path) -> Path:
    return next(place.iterdir())


def test_one_process_of_a_host_asks_the_store(store, feeds):
    """The others read what it writes down; an alarm costs the store one reading for each host."""
    lookout, *others = feeds(4)
    for feed in (lookout, *others):
        assert _heard(feed, store) == []
    assert store.taken() == {LOOKOUTS_KEY: 1, COUNT_KEY: 1}
    for feed in (*others, lookout):
        assert _heard(feed, store) == []
    assert store.taken() == {COUNT_KEY: 1}
    store.put("one", "two")
    store.taken()
    for feed in (lookout, *others):
        assert _heard(feed, store) == ["one", "two"]
        assert _heard(feed, store) == []
    assert store.taken() == {COUNT_KEY: 2, f"{COUNT_KEY}/1": 1, f"{COUNT_KEY}/2": 1}


def test_who_starts_late_hears_all_without_the_store(store, feeds):
    """What was asked before stands in the file."""
    store.put("one", "two")
    lookout, late = feeds(2)
    assert _heard(lookout, store) == ["one", "two"]
    store.taken()
    assert _heard(late, store) == ["one", "two"]
    assert store.taken() == {}


def test_a_look_at_the_file_tells_that_there_is_something(store, feeds):
    """A process that is not the lookout need not wait for its next look."""
    lookout, other = feeds(2)
    assert not other.has_more()
    _heard(lookout, store), _heard(other, store)
    assert not other.has_more()
    store.put("one")
    _heard(lookout, store)
    assert other.has_more()
    assert not lookout.has_more()
    _heard(other, store)
    assert not other.has_more()


def test_without_a_name_nothing_is_shared(store, place):
    """Such a feed is one reader of the alarms."""
    store.put("one")
    store.taken()
    assert _heard(AlarmFeed(), store) == ["one"]
    assert _heard(AlarmFeed(), store) == ["one"]
    assert store.taken() == {COUNT_KEY: 2, f"{COUNT_KEY}/1": 2}
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("end", [_die, AlarmFeed.close, AlarmFeed.pause])
def test_another_process_goes_on(store, feeds, end):
    """Whether the lookout dies, ends or does not look for some time: nothing is lost and nothing heard twice."""
    lookout, *others = feeds(3)
    for feed in (lookout, *others):
        assert _heard(feed, store) == []
    store.put("one")
    assert _heard(lookout, store) == ["one"]
    end(lookout)
    store.put("two")
    store.taken()
    for feed in others:
        assert _heard(feed, store) == ["one", "two"]
    assert store.taken() == {LOOKOUTS_KEY: 1, COUNT_KEY: 1, f"{COUNT_KEY}/2": 1}


def _at_step(step: int) -> Callable[[], None]:
    steps = itertools.count()

    def trouble() -> None:
        if next(steps) == step:
            raise _Killed

    return trouble


@pytest.mark.parametrize("step", range(12))
def test_a_lookout_may_be_killed_at_any_operation(store, feeds, step):
    """Before and after each one on the store."""
    lookout, *others = feeds(3)
    store.put("one", "two", "three")
    store.trouble = _at_step(step)
    try:
        _heard(lookout, store)
    except _Killed:
        store.trouble = lambda: None
        _die(lookout)
    else:
        assert step >= 10
    for feed in others:
        assert _heard(feed, store) == ["one", "two", "three"]


@pytest.mark.parametrize("written", [0, 1, 9, 10, 14, -1, None])
def test_a_lookout_may_be_killed_in_the_middle_of_a_line(store, feeds, monkeypatch, written):
    """Nobody hears half an alarm, and the next lookout writes over it."""
    lookout, reader, *others = feeds(4)
    store.put("one")
    assert _heard(lookout, store) == _heard(reader, store) == ["one"]
    real = os.pwrite

    def half(file: int, data: bytes, offset: int) -> int:
        real(file, data[:written], offset)
        raise _Killed

    store.put("two")
    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(_Killed):
        _heard(lookout, store)
    monkeypatch.setattr(os, "pwrite", real)
    assert _heard(reader, store) == (["two"] if written is None else [])  # the lock is held still
    _die(lookout)
    assert _heard(others[0], store) == ["one", "two"]
    assert _heard(reader, store) == ([] if written is None else ["two"])
    assert not reader.has_more()
    store.put(*"345")
    assert _heard(others[0], store) == _heard(reader, store) == list("345")
    assert _heard(others[1], store) == ["one", "two", *"345"]


def test_a_lookout_that_is_stopped_is_not_waited_for(store, feeds, clock):
    """The others ask the store themselves; when it goes on nobody hears anything twice."""
    lookout, *others = feeds(3)
    for feed in (lookout, *others):
        _heard(feed, store)
    store.put("one")
    clock.now += 1.0
    assert _heard(others[0], store) == []
    clock.now += alarm_file.QUIET
    for feed in others:
        assert _heard(feed, store) == ["one"]
    assert _heard(lookout, store) == ["one"]
    store.put("two")
    assert _heard(lookout, store) == ["two"]
    store.taken()
    for feed in others:
        assert _heard(feed, store) == ["two"]
    assert store.taken() == {}


def test_who_asked_the_store_itself_writes_down_what_the_others_miss(store, feeds):
    """A lookout begins where the file ends, not where it stands itself."""
    lookout, eager, other = feeds(3)
    for feed in (lookout, eager, other):
        _heard(feed, store)
    store.put("one", "two")
    assert _heard(eager, store, itself=True) == ["one", "two"]
    _die(lookout)
    store.put("three")
    assert _heard(eager, store) == ["three"]
    assert _heard(other, store) == ["one", "two", "three"]


def test_an_alarm_that_is_not_written_yet_is_waited_for(store, feeds):
    """The alarms after it come after it."""
    lookout, other = feeds(2)
    store.add(COUNT_KEY, 1)
    store.put("two")
    assert _heard(lookout, store) == _heard(other, store) == []
    store.set(f"{COUNT_KEY}/1", '["one"]')
    assert _heard(lookout, store) == _heard(other, store) == ["one", "two"]


@pytest.mark.parametrize("shares", [True, False])
def test_an_alarm_whose_writer_died_is_given_up(store, feeds, shares):
    """Those after it are heard by all."""
    lookout, other = feeds(2) if shares else (AlarmFeed(), AlarmFeed())
    store.add(COUNT_KEY, 1)
    store.put("two")
    for _ in range(alarm_feed.MOST_UNWRITTEN - 1):
        assert _heard(lookout, store) == _heard(other, store) == []
    assert _heard(lookout, store) == _heard(other, store) == ["two"]


@pytest.mark.parametrize(
    ("shares", "step"), [(shares, step) for shares in (True, False) for step in range(8 + 2 * shares)]
)
def test_an_error_of_the_store_changes_no_position(store, feeds, shares, step):
    """It goes up. What was read before it is heard, once, at the next look."""
    feed, other = feeds(2) if shares else (AlarmFeed(), AlarmFeed())
    store.put("one", "two", "three")
    steps = itertools.count()

    def trouble() -> None:
        if next(steps) == step:
            raise RuntimeError("the store is gone")

    store.trouble = trouble
    with pytest.raises(RuntimeError, match="gone"):
        _heard(feed, store)
    feed.pause()
    for one in (other, feed) if step % 2 else (feed, other):
        assert _heard(one, store) == ["one", "two", "three"]


def test_what_a_program_does_with_a_text_loses_none_of_the_others(store, feeds):
    """One that cannot be read is not heard again, and those after it are."""
    (feed,) = feeds(1)
    store.put("one", "two", "three")
    for text in feed.news(store):
        assert b"o" in text
        break
    assert _heard(feed, store) == ["two", "three"]


@pytest.mark.parametrize("why", ["no shared memory", "no name for the host", "a link", "no lock"])
def test_without_a_file_each_process_is_its_own_lookout(store, feeds, monkeypatch, place, why):
    """All is heard as it was, and nothing raises."""
    if why == "no shared memory":
        place.rmdir()
    elif why == "no name for the host":
        monkeypatch.setattr(hosts, "own_host", lambda: "")
    elif why == "a link":
        (probe,) = feeds(1)
        _heard(probe, store)
        path = _file(place)
        probe.close()
        path.symlink_to(place.parent / "target")
    else:
        monkeypatch.setattr(alarm_file.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks")))
    both = feeds(2)
    store.put("one")
    store.taken()
    for feed in both:
        assert _heard(feed, store) == ["one"]
        assert _heard(feed, store) == []
        assert not feed.has_more()
    assert store.taken() == {LOOKOUTS_KEY: 2, COUNT_KEY: 4, f"{COUNT_KEY}/1": 2}
    assert not (place.parent / "target").exists()


@pytest.mark.parametrize("how", ["an error", "half a line", "as much as is allowed"])
def test_a_file_system_that_is_full_means_the_store(store, feeds, monkeypatch, how):
    """Also in the middle of a line. What was written before is heard from the file."""
    lookout, *others = feeds(3)
    store.put("one")
    assert _heard(lookout, store) == ["one"]
    real = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        if how == "an error":
            raise OSError(28, "no space")
        return real(file, data[:5], offset)

    if how == "as much as is allowed":
        monkeypatch.setattr(alarm_file, "MOST_BYTES", 30)
    else:
        monkeypatch.setattr(os, "pwrite", full)
    store.put("two", "three")
    assert _heard(lookout, store) == ["two", "three"]
    for feed in others:
        assert _heard(feed, store) == ["one", "two", "three"]
    store.put("four")
    for feed in (lookout, *others):
        assert _heard(feed, store) == ["four"]


@pytest.fixture
def room(monkeypatch: Any) -> int:
    """Let the file have room for a few alarms; return for how many."""
    monkeypatch.setattr(alarm_file, "MOST_BYTES", 120)
    return (120 - alarm_file._HEAD) // len(alarm_file._line(b'["00"]'))


def test_a_file_that_is_full_begins_anew(store, feeds, room):
    """However many alarms a job has had, one process of a host asks the store, and the others read the file."""
    lookout, *others = feeds(3)
    words = [f"{number:02}" for number in range(5 * room)]
    for word in words:
        store.put(word)
        store.taken()
        for feed in (lookout, *others):
            assert _heard(feed, store) == [word]
        number = str(int(word) + 1)
        assert store.taken().keys() <= {COUNT_KEY, f"{COUNT_KEY}/{number}", LOOKOUTS_KEY}
    for feed in (lookout, *others):
        assert _heard(feed, store) == []
    assert store.taken() == {COUNT_KEY: 1}


def test_who_has_not_read_all_before_it_begins_anew_reads_the_rest_in_the_store(store, feeds, room):
    """In order, and once; from then on it reads the file."""
    lookout, slow, late = feeds(3)
    assert _heard(lookout, store) == _heard(slow, store) == []
    words = [f"{number:02}" for number in range(3 * room)]
    store.put(*words)
    assert _heard(lookout, store) == words
    assert _heard(slow, store) == words
    assert _heard(late, store) == words
    store.put("99")
    assert _heard(lookout, store) == ["99"]
    store.taken()
    assert _heard(slow, store) == _heard(late, store) == ["99"]
    assert store.taken() == {}


def test_a_line_that_was_read_before_it_begins_anew_is_not_taken_for_another(store, feeds, room, monkeypatch):
    """A reader that looks at the very moment hears nothing wrong, and all of it a moment later."""
    lookout, reader = feeds(2)
    store.put(*[f"{number:02}" for number in range(room)])
    assert _heard(lookout, store) == _heard(reader, store)
    store.put("98")
    real = os.fstat

    def between(file: int) -> os.stat_result:
        monkeypatch.setattr(os, "fstat", real)
        assert _heard(lookout, store) == ["98"]
        store.put("99")
        assert _heard(lookout, store) == ["99"]
        return real(file)

    monkeypatch.setattr(os, "fstat", between)
    assert _heard(reader, store) + _heard(reader, store) == ["98", "99"]


@pytest.mark.parametrize("written", [0, 3, alarm_file._HEAD - 1, alarm_file._HEAD, alarm_file._HEAD + 5])
def test_a_lookout_may_be_killed_while_it_begins_anew(store, feeds, room, monkeypatch, written):
    """The next one begins anew itself, or goes on after the last whole line."""
    lookout, reader, late = feeds(3)
    words = [f"{number:02}" for number in range(room)]
    store.put(*words)
    assert _heard(lookout, store) == _heard(reader, store) == words
    store.put("98")
    real = os.pwrite

    def half(file: int, data: bytes, offset: int) -> int:
        real(file, data[:written], offset)
        raise _Killed

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(_Killed):
        _heard(lookout, store)
    monkeypatch.setattr(os, "pwrite", real)
    _die(lookout)
    assert _heard(late, store) == [*words, "98"]
    assert _heard(reader, store) == ["98"]
    store.put("99")
    assert _heard(late, store) == _heard(reader, store) == ["99"]


def test_the_file_belongs_to_one_user_and_goes_with_the_processes(store, feeds, place):
    """Nothing is left when those that used it have ended."""
    one, other = feeds(2)
    _heard(one, store), _heard(other, store)
    assert _file(place).stat().st_mode & 0o777 == 0o600
    other.close()
    store.put("one")
    assert _heard(one, store) == ["one"]
    one.close()
    assert list(place.iterdir()) == []


def test_a_job_that_has_run_for_a_minute_leaves_no_file(store, feeds, clock, place):
    """However it ends. Those that have the file open share it still; who starts later has another one."""
    one, other, late, later = feeds(4)
    _heard(one, store), _heard(other, store)
    clock.now += alarm_file.NAMED
    store.put("one")
    _heard(one, store)
    assert list(place.iterdir()) == []
    assert _heard(other, store) == ["one"]
    assert _heard(late, store) == ["one"]
    clock.now += 1.0
    _heard(one, store)
    one.close()
    assert len(list(place.iterdir())) == 1, "the file of others"
    store.taken()
    assert _heard(later, store) == ["one"]
    assert store.taken() == {}


def test_what_a_killed_job_left_is_removed_by_a_later_one(store, feeds, place):
    """Only if nobody gives a sign of life, and nothing else."""
    killed, lives, last = (feeds(1, host)[0] for host in "abc")
    (place / "of another program").touch()
    _heard(killed, store)
    (left,) = place.glob("tracehook-alarms-*")
    _die(killed)
    _heard(lives, store)
    for path in place.iterdir():
        if path == left or path.name == "of another program":
            os.utime(path, (1.0, 1.0))
    _heard(last, store)
    assert not left.exists()
    assert len(list(place.iterdir())) == 3


def test_another_job_never_reads_an_old_file(store, feeds, place):
    """A token of its own is a name of its own."""
    (killed,) = feeds(1)
    store.put("old")
    _heard(killed, store)
    _die(killed)
    assert len(list(place.iterdir())) == 1
    (feed,) = feeds(1, "of another job")
    assert _heard(feed, _Store()) == []


def test_many_processes_of_a_shard_read_its_own_keys(store, feeds, monkeypatch):
    """The alarms have as many readers as a shard has members, and one for each further shard."""
    monkeypatch.setattr(alarm_feed, "SHARD", 4)
    lookouts = [feeds(1, f"host {number}")[0] for number in range(14)]
    for feed in lookouts * 2:
        assert _heard(feed, store) == []
    store.taken()
    store.put("one", "two")
    store.taken()
    for feed in lookouts:
        assert _heard(feed, store) == ["one", "two"]
    readers = store.taken()
    assert readers.pop(COUNT_KEY) == readers.pop(f"{COUNT_KEY}/1") == readers.pop(f"{COUNT_KEY}/2") == 4 + 3
    # Of the second and third shard three read what the fourth writes, the last one has one reader.
    assert {key: count for key, count in readers.items() if "/3" not in key} == dict.fromkeys(
        [f"{SHARD_KEY}/{shard}{text}" for shard in (1, 2) for text in ("", "/1", "/2")], 4
    )
    for feed in lookouts:
        assert _heard(feed, store) == []
    assert store.taken() == {COUNT_KEY: 7, f"{SHARD_KEY}/1": 4, f"{SHARD_KEY}/2": 4, f"{SHARD_KEY}/3": 2}


def test_no_key_has_many_readers(store, monkeypatch):
    """Not with 2,048 hosts, in a look at which there is something to hear, nor in one at which there is nothing."""
    monkeypatch.setattr(hosts, "own_host", lambda: "")  # so that each is a lookout
    lookouts = [AlarmFeed(lambda _: "token") for _ in range(2048)]
    for feed in lookouts:
        assert _heard(feed, store) == []
    assert max(store.taken().items(), key=lambda item: item[1] * (item[0] != LOOKOUTS_KEY)) == (COUNT_KEY, 128 + 15)
    store.put("one")
    store.taken()
    for feed in lookouts:
        assert _heard(feed, store) == ["one"]
    assert max(store.taken().values()) == 128 + 15
    for feed in lookouts:
        assert _heard(feed, store) == []
    asked = store.taken()
    assert (max(asked.values()), sum(asked.values())) == (128 + 15, 2048 + 15)


def test_who_copies_for_a_shard_may_die(store, feeds, monkeypatch, clock):
    """Another one of the shard goes on when it has heard nothing for some time, and all hear all."""
    monkeypatch.setattr(alarm_feed, "SHARD", 4)
    lookouts = [feeds(1, f"host {number}")[0] for number in range(8)]
    store.put("one")
    for feed in lookouts:
        assert _heard(feed, store) == ["one"]
    _die(lookouts[4])
    members = lookouts[5:]
    store.put("two")
    for feed in members:
        assert _heard(feed, store) == []
    clock.now += alarm_file.QUIET
    for feed in members:
        assert _heard(feed, store) == ["two"]
    store.put("three")
    store.taken()
    for feed in members:
        assert _heard(feed, store) == ["three"]
    assert store.taken()[COUNT_KEY] == 1
    (late,) = feeds(1, "new host")
    store.values[LOOKOUTS_KEY] = b"7"
    assert _heard(late, store) == ["one", "two", "three"]


def test_who_was_only_slow_to_copy_reads_what_another_one_copies_now(store, feeds, monkeypatch, clock):
    """Two that copy do not disturb each other, and soon there is one."""
    monkeypatch.setattr(alarm_feed, "SHARD", 2)
    slow, quick = (feeds(1, host)[0] for host in ("a", "b"))
    store.values[LOOKOUTS_KEY] = b"2"
    assert _heard(slow, store) == _heard(quick, store) == []
    clock.now += alarm_file.QUIET
    store.put("one")
    assert _heard(quick, store) == ["one"]
    store.put("two")
    assert _heard(slow, store) == ["one", "two"]
    assert _heard(quick, store) == ["two"]
    store.put("three")
    store.taken()
    assert _heard(quick, store) == _heard(slow, store) == ["three"]
    assert store.taken()[COUNT_KEY] == 1


class _World:
    """Processes on some hosts, and what happens to them."""

    def __init__(self, seed: int, clock: _Clock) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock
        self.store = _Store()
        self.written: list[str] = []
        self.heard: dict[AlarmFeed, list[str]] = {}
        self.stopped: set[AlarmFeed] = set()
        self.late: str = ""  # the number of an alarm that is counted and not written yet
        self.busy: list[AlarmFeed] = []  # in a look
        self.steps = -1  # until there is trouble
        self.trouble: type[BaseException] | None = None  # what it is; None: others go on meanwhile
        self.store.trouble = self.step

    def step(self, most: int = 0) -> None:
        """Count a step at which a process may die, or be stopped for some time."""
        if self.steps >= 0:
            self.steps -= 1
            if self.steps < most:
                self.steps = -1
                if self.trouble is not None:
                    raise self.trouble("here")
                for _ in range(self.rng.randrange(8)):
                    self.act()

    def pwrite(self, real: Callable[[int, bytes, int], int]) -> Callable[[int, bytes, int], int]:
        """Return a write in which a process may die, or be stopped."""

        def write(file: int, data: bytes, offset: int) -> int:
            part = 0
            if self.trouble is not RuntimeError:
                part = real(file, data[: self.rng.randrange(len(data) + 1)], offset)
                self.step(2)
            return part + real(file, data[part:], offset + part)

        return write

    def start(self) -> None:
        host = self.rng.randrange(4)
        self.heard[AlarmFeed(lambda _: f"job {self.seed} host {host}")] = []

    def raise_alarm(self) -> None:
        self.finish_writing()
        number = self.store.add(COUNT_KEY, 1)
        fate = self.rng.random()
        if fate < 0.1:
            return  # its writer dies
        self.written.append(str(number))
        if fate < 0.4:
            self.late = str(number)
        else:
            self.store.set(f"{COUNT_KEY}/{number}", f'["{number}"]')

    def finish_writing(self) -> None:
        if self.late:
            self.store.set(f"{COUNT_KEY}/{self.late}", f'["{self.late}"]')
            self.late = ""

    def look(self, feed: AlarmFeed) -> None:
        self.busy.append(feed)
        try:
            for text in feed.news(self.store, itself=self.rng.random() < 0.05):
                self.heard[feed] += json.loads(text)
        except _Killed:
            _die(feed)
            del self.heard[feed]
        except RuntimeError:
            feed.pause()
        self.busy.remove(feed)
        self.steps = -1

    def act(self) -> None:
        able = [feed for feed in self.heard if feed not in self.stopped and feed not in self.busy]
        what = self.rng.random()
        if what < 0.06 or not self.heard:
            self.start()
        elif what < 0.2:
            self.raise_alarm()
        elif what < 0.25:
            self.clock.now += self.rng.choice([0.1, 1.0, 2 * alarm_file.QUIET])
        elif what < 0.27 and able:
            self.stopped.add(self.rng.choice(able))
        elif what < 0.29:
            self.stopped.clear()
        elif what < 0.3 and able:
            feed = self.rng.choice(able)
            feed.close()
            del self.heard[feed]
        elif able:
            if self.rng.random() < 0.15:
                self.steps, self.trouble = self.rng.randrange(12), self.rng.choice([_Killed, RuntimeError, None])
            self.look(self.rng.choice(able))
            self.finish_writing()

    def settle(self) -> None:
        self.finish_writing()
        for _ in range(60):  # some alarms are given up, one after the other
            self.clock.now += 1.0
            for feed in list(self.heard):
                self.look(feed)


@pytest.mark.parametrize("most", [alarm_file.MOST_BYTES, 120])
@pytest.mark.parametrize("begin", range(0, 160, 40))
def test_each_process_hears_each_alarm_once_whatever_happens(monkeypatch, clock, begin, most):
    """Deaths, stops, errors, new processes and late alarms, at any step, on four hosts in shards of two.

    With little room, the file also begins anew with every few alarms.
    """
    monkeypatch.setattr(alarm_file, "MOST_BYTES", most)
    monkeypatch.setattr(alarm_feed, "SHARD", 2)
    monkeypatch.setattr(alarm_feed, "MOST_UNWRITTEN", 4)
    real = os.pwrite
    for seed in range(begin, begin + 40):
        world = _World(seed, clock)
        monkeypatch.setattr(os, "pwrite", world.pwrite(real))
        for _ in range(150):
            world.act()
        world.settle()
        for feed, heard in world.heard.items():
            assert heard == world.written, seed
            feed.close()
        alarm_feed._all.clear()


PROGRAM = """
    import json, os, sys, time
    from pathlib import Path
    from tracehook.symmetric_memory import alarm_file, hosts
    from tracehook.symmetric_memory.alarm_feed import AlarmFeed

    place = Path(sys.argv[1])
    hosts.SHARED_MEMORY, alarm_file.QUIET = place / "memory", float(sys.argv[2])

    class Store:
        def add(self, key, value):
            return len(list((place / "alarms").iterdir())) if not value else 1

        def compare_set(self, key, expected, desired):
            print("asked", flush=True)
            return (place / "alarms" / key.split("/")[-1]).read_bytes()

    feed = AlarmFeed(lambda _: "token")
    list(feed.news(Store()))
    if "forks" in sys.argv and os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    print("ready", flush=True)
    while True:
        for text in feed.news(Store()):
            print(text.decode(), flush=True)
        time.sleep(0.02)
"""


@pytest.mark.parametrize(("number", "quiet"), [(signal.SIGKILL, 1000.0), (signal.SIGSTOP, 0.3)])
def test_processes_that_are_killed_or_stopped(tmp_path, number, quiet):
    """The kernel gives the lock of a killed one free, also if it had forked; a stopped one is gone round."""
    alarms = tmp_path / "alarms"
    alarms.mkdir()

    def put(text: str) -> None:
        new = tmp_path / uuid.uuid4().hex
        new.write_text(json.dumps([text]))
        new.rename(alarms / str(len(list(alarms.iterdir())) + 1))

    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), str(quiet), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert _line(started[-1]) == "ready"
        return started[-1]

    try:
        lookout, *others = start("forks"), start(), start()
        put("one")
        assert [_until_text(process)[0] for process in started] == ['["one"]'] * 3
        os.kill(lookout.pid, number)
        put("two")
        told = [_until_text(process) for process in others]
        assert [text for text, _ in told] == ['["two"]', '["two"]']
        assert sum(asked for _, asked in told) == (1 if number == signal.SIGKILL else 2), "each alarm is read"
        os.kill(lookout.pid, signal.SIGCONT)
        put("three")
        assert [_until_text(process)[0] for process in others] == ['["three"]', '["three"]']
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _until_text(process: subprocess.Popen[str]) -> tuple[str, int]:
    for asked in itertools.count():
        if (line := _line(process)) != "asked":
            return line, asked
    raise AssertionError


def test_a_forked_child_has_no_part_in_it(store, feeds):
    """It asks the store for itself, should it ever look, and does not hear again what its parent heard."""
    lookout, other = feeds(2)
    store.put("one")
    assert _heard(lookout, store) == _heard(other, store) == ["one"]
    alarm_feed._after_fork()
    store.put("two")
    assert _heard(lookout, store) == _heard(other, store) == ["two"]


@pytest.mark.parametrize("shard", [128, 1])
def test_a_real_store_answers_as_the_feed_expects(feeds, monkeypatch, shard):
    """Alarms, copies and the beat of a shard over a TCPStore."""
    monkeypatch.setattr(alarm_feed, "SHARD", shard)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    both = [feeds(1, host)[0] for host in ("a", "b")]
    for word in ("one", "two"):
        _put(store, word)
        for feed in both:
            assert _heard(feed, store) == [word]
            assert _heard(feed, store) == []
    assert store.check([f"{SHARD_KEY}/1"]) == (shard == 1)


def test_the_processes_of_a_job_share_a_file(place):
    """Its name comes from the token of their store."""
    stores = [dist.HashStore() for _ in range(2)]
    meetings = [Meeting(store, lambda _: None) for store in (stores[0], stores[0], stores[1])]
    for meeting in meetings:
        meeting.watch._look_at_others(meeting.store)
    assert len(list(place.iterdir())) == 2
    for meeting in meetings:
        meeting.watch._feed.close()


def test_watches_of_a_host_share_what_they_hear(store, monkeypatch):
    """Before a watch asks what another one asks, it looks into the store itself: the lookout may be late."""
    monkeypatch.setattr(alarm, "LATE", 0.0)
    post = Post("compare", "windows", ["a"], (3, 1))
    parts = [Part("p", rank, 4, "communicator c", 20.0) for rank in range(2)]
    waits = [Waiting(Task(rounds.attend(one, 1, post), 20.0), one, 1, post, time.monotonic() - 5) for one in parts]
    lookout, other, third = watches = [Watch(store, name=lambda _: "token") for _ in range(3)]
    for watch in watches:
        watch._look_at_others(store)
    assert store.taken() == {LOOKOUTS_KEY: 1, COUNT_KEY: 1}
    with lookout.following("key", waits[0], {}), other.following("key", waits[1], {}):
        lookout._look_after_own(store)
        other._look_after_own(store)
        assert store.values[COUNT_KEY] == b"1"
        store.taken()
        other._look_after_own(store)
        assert store.taken() == {COUNT_KEY: 1, f"{COUNT_KEY}/1": 1}, "it read the alarm, and raised none"
        for watch in watches:
            watch._look_at_others(store)
        assert store.taken() == {COUNT_KEY: 1, f"{COUNT_KEY}/1": 1}
        assert set(lookout._open) == set(other._open) == set(third._open) == {"p/1/verdict"}
    for watch in watches:
        watch._feed.close()

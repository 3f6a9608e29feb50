"""How a process hears of alarms: one process of each host asks the store, the others read what that one writes down.

The *lookout* of a host holds the lock of a file in shared memory, and adds one line to it for each alarm. If it dies,
the kernel gives the lock free, and the next process that looks goes on after the last line. What a process has heard
it knows itself, so nothing is lost or heard twice then. A process that has no such file is a lookout for itself.

The first `SHARD` lookouts read the alarms where they are written. Of every further `SHARD` one does, and copies them to
keys of its shard for the others, so that no key has many readers.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tracehook.symmetric_memory.alarm_file import QUIET, AlarmFile

if TYPE_CHECKING:
    from torch.distributed import Store

COUNT_KEY = "tracehook/alarms"
LOOKOUTS_KEY = f"{COUNT_KEY}/lookouts"
MOST_UNWRITTEN = 20  # looks at an alarm that is counted and not there
SHARD = 128


class AlarmFeed:
    """The alarms at one store, as one process hears them. For one thread.

    `name` returns what the file of this job is called after, equal on all its processes and unlike that of any other
    job. Without it the process shares nothing and reads the alarms where they are written.
    """

    def __init__(self, name: Callable[[Store], str] | None = None) -> None:
        self._name = name
        self._alarms = _Alarms()
        self._file: AlarmFile | None = None
        self._lookout: _Lookout | None = None
        self._heard = 0  # number of the last alarm that was taken
        self._known = 0  # number of the last one that some lookout has passed
        self._ready: deque[bytes] = deque()
        _all.add(self)

    def news(self, store: Store, itself: bool = False) -> Iterator[bytes]:
        """Yield the texts that are new, in order, each once; raises what the store raises.

        With `itself` this process does not rely on any other one.
        """
        self._look(store, itself)
        while self._ready:
            yield self._ready.popleft()

    def has_more(self) -> bool:
        """Whether there is something new in the file. Does not ask the store."""
        return self._file is not None and self._file.has_more()

    def pause(self) -> None:
        """Let another process be the lookout, because this one will not look for some time."""
        self._lookout = None
        if self._file is not None:
            self._file.unlock()

    def close(self) -> None:
        """At the end of the process: let another one be the lookout, and leave no file."""
        self._lookout = None
        if self._file is not None:
            self._file.close()

    def forget(self) -> None:
        """In a forked child: the file is the parent's."""
        self._lookout = None
        if self._file is not None:
            self._file.forget()

    def _look(self, store: Store, itself: bool) -> None:
        if self._name is None:
            itself = True
        else:
            self._file = self._file or AlarmFile(self._name(store))
            is_lookout = self._file.lock()
            for number, text in self._file.read():
                self._hear(number, text)
            self._known = max(self._known, self._file.count)
            if is_lookout:
                self._look_for_all(store, self._file)
            else:
                itself = itself or self._file.is_quiet()
            # The file was begun anew before this process had read all.
            itself = itself or self._heard < self._known
        if itself:
            for number, text in self._alarms.after(store, self._heard, self._known):
                self._hear(number, text)

    def _look_for_all(self, store: Store, file: AlarmFile) -> None:
        # Not where this process stands: it may have looked itself while the lookout before was stopped.
        last = file.count if file.is_open else self._heard
        self._lookout = self._lookout or _Lookout(store, last, self._alarms)
        for number, text in self._lookout.after(store):
            file.append(text)
            self._hear(number, text)
        file.give_sign()

    def _hear(self, number: int, text: bytes) -> None:
        self._known = max(self._known, number)
        if number == self._heard + 1:
            self._heard = number
            if text:
                self._ready.append(text)


class _Alarms:
    """Reads the alarms where they are written."""

    def __init__(self) -> None:
        self._awaited = 0  # number of one that is not there
        self._looks = 0  # at that

    def after(self, store: Store, last: int, known: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of each alarm after number `last`; the text is empty if it will not come any more.

        Some lookout has waited for those up to number `known`, so that they are there or will not come.
        """
        count = store.add(COUNT_KEY, 0)
        for number in range(last + 1, count + 1):
            text = _text(store, f"{COUNT_KEY}/{number}")
            if not text and number > known and not self._is_lost(number):
                return
            yield number, text

    def _is_lost(self, number: int) -> bool:
        """Its writer has counted it, and not written it yet, or has died in between."""
        self._looks = self._looks + 1 if self._awaited == number else 1
        self._awaited = number
        return self._looks >= MOST_UNWRITTEN


class _Lookout:
    """Reads the alarms after number `last` for the processes of a host, and maybe for other lookouts."""

    def __init__(self, store: Store, last: int, alarms: _Alarms) -> None:
        self._last = last
        self._alarms = alarms
        self._number = store.add(LOOKOUTS_KEY, 1)
        self._shard = (self._number - 1) // SHARD
        self._key = f"{COUNT_KEY}/shard/{self._shard}"  # what its copies are, and a beat
        self._shown = b""  # there, as far as is known
        self._since = time.monotonic()
        self._copies = False  # whether this one does, for the others of the shard
        self._before = 0  # the last alarm that it did not copy
        self._beat = 0

    def after(self, store: Store) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of each alarm that is new, as :meth:`_Alarms.after` does."""
        if self._shard == 0:
            found = self._alarms.after(store, self._last)
        elif self._copies or self._is_needed(store):
            found = self._copied(store)
        else:
            found = self._read_copies(store)
        for self._last, text in found:
            yield self._last, text

    def _is_needed(self, store: Store) -> bool:
        """Whether nobody copies the alarms for this shard."""
        shown, now = store.compare_set(self._key, "?", "?"), time.monotonic()
        if shown == b"?":
            return True
        if shown != self._shown:
            self._shown, self._since = shown, now
        return now - self._since >= QUIET

    def _copied(self, store: Store) -> Iterator[tuple[int, bytes]]:
        if not self._copies:
            self._before = self._last
        for number, text in self._alarms.after(store, self._last):
            store.set(f"{self._key}/{number}", text.decode() or "-")
            yield number, text
        # Two that find that nobody copies both do, and one of them goes on with it. Their copies are the same.
        self._beat += 1
        offer = json.dumps([self._before, self._last, self._number, self._beat])
        self._shown = store.compare_set(self._key, self._shown.decode(), offer)
        self._since = time.monotonic()
        self._copies = self._shown == offer.encode()

    def _read_copies(self, store: Store) -> Iterator[tuple[int, bytes]]:
        before, last = json.loads(self._shown)[:2]
        for number in range(self._last + 1, last + 1):
            yield number, _text(store, f"{self._key if number > before else COUNT_KEY}/{number}")


def _text(store: Store, key: str) -> bytes:
    """Return an alarm, or nothing if it is not there."""
    # One operation: comparing with what the key never holds reads it without waiting for it.
    text: bytes = store.compare_set(key, "?", "?")
    return text if text.startswith(b"[") else b""


_all: weakref.WeakSet[AlarmFeed] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that kept the file open would keep its parent's lock when that one has died."""
    for feed in list(_all):
        feed.forget()


os.register_at_fork(after_in_child=_after_fork)

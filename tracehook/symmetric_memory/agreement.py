"""The ranks of a communicator compare what they are about to do, with a deadline, before any collective call.

One round leaves one verdict. Every rank posts what it wants under a key of its own. Rank 0, the leader, waits for the
posts of all, judges them and writes the verdict; the others wait for it. A rank whose time is up writes a verdict as
well: time-out. Each writes with compare_set onto an absent key, so the first one stands, and *every rank obeys the one
that stands*, never its own proposal. That is why no rank goes on while another one raises:

* leader late or dead: the first rank whose time is up writes the time-out, which the leader finds when it comes;
* other rank late: it finds the time-out that the others wrote, and raises too;
* rank at the very deadline: the leader has seen its post or has not; either way there is one verdict;
* rank dead after its post: it raises nothing any more; the others go on and meet its end in the collective call.

What cannot be had is agreement with a rank that lost the store, or was interrupted, between its post and the verdict:
it raises, and cannot know whether the others go on.
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.hook.groups import cloned_store

if TYPE_CHECKING:
    from torch.distributed import Store

LEADER = 0
# Seconds after the deadline when a store that has not answered counts as gone. Not fewer: when the wait of a TCPStore
# runs out of time, torch writes a warning and looks up names for it; a bad name server makes that take many seconds.
GRACE = 30.0
POLL_INTERVAL = 0.01
MOST_GROUPS = 8  # different wishes that a message shows


class _Post(NamedTuple):
    """What one rank came with."""

    act: str
    topic: str
    entries: list[str]

    @property
    def consequence(self) -> str:
        """What follows for the ranks if the round does not end well."""
        return "no rank uses what it is about" if self.act == "confirm" else "nothing was registered or called"


class _Verdict(NamedTuple):
    """What a round ended with, equal on all ranks."""

    kind: str
    text: str = ""
    missing: Sequence[int] = ()
    data: Any = None  # of "failed": the reasons by rank; of a round that shares: what all have


class Agreement:
    """One sequence of rounds of the ranks of one communicator.

    There is one instance per (communicator, channel) and process, and every rank calls the same methods in the same
    order. Rounds are numbered, so a rank that missed one meets its verdict at its next call: that call raises
    :class:`RegistrationTimeout`, saying that this rank came late, and the call after it is level with the others again.
    After any other failure the instance can be used at once. One thread at a time: a second one waits for the round of
    the first, and its own deadline counts from then.
    """

    def __init__(self, store: Store, channel: str, rank: int, ranks: int, about: str) -> None:
        self.rounds = 0
        self.trips = 0
        self._store = store
        self._prefix = f"tracehook/{channel}"
        self._rank = rank
        self._ranks = ranks
        self.about = about
        self._lock = threading.Lock()
        self._line: _Line | None = None
        # Keys for this rank to remove. Some rank may still need those that are kept, nobody the removable ones.
        self._kept: list[str] = []
        self._removable: list[str] = []

    def compare(self, topic: str, entries: Sequence[str], timeout: float) -> None:
        """Return when all ranks have come with this topic and these entries.

        Raises:
            RegistrationMismatch: they want different things; the text is the same on all ranks.
            RegistrationTimeout: the ranks in `missing` did not come within `timeout` seconds, or this rank came late.
            RegistrationError: the store has failed.

        """
        self._hold(_Post("compare", topic, list(entries)), timeout)

    def confirm(self, topic: str, failure: str, timeout: float) -> None:
        """Tell the others that this rank succeeded (`failure` is empty) or why not; return if all ranks did.

        Raises:
            RegistrationFailed: it failed on some rank; the text is the same on all ranks.
            RegistrationMismatch, RegistrationTimeout, RegistrationError: as for :meth:`compare`.

        """
        self._hold(_Post("confirm", topic, [failure]), timeout)

    def common(self, topic: str, entries: Sequence[str], timeout: float) -> list[str]:
        """Return the entries that all ranks have come with, in the order in which rank 0 has them.

        Raises:
            RegistrationMismatch, RegistrationTimeout, RegistrationError: as for :meth:`compare`.

        """
        return list(self._hold(_Post("share", topic, list(entries)), timeout).data)

    def _hold(self, post: _Post, timeout: float) -> _Verdict:
        with self._lock:
            self.rounds += 1
            verdict = _judge(self.about, [post]) if self._ranks == 1 else self._attend(post, timeout)
        if verdict.kind == "timeout":
            is_late = self._rank in verdict.missing
            late = f"{self.about}: this rank ({self._rank}) came late itself. " if is_late else ""
            raise RegistrationTimeout(late + verdict.text, verdict.missing)
        if verdict.kind == "failed":
            raise RegistrationFailed(verdict.text, {int(rank): why for rank, why in verdict.data.items()})
        if verdict.kind != "ok":
            raise RegistrationMismatch(verdict.text)
        return verdict

    def _attend(self, post: _Post, timeout: float) -> _Verdict:
        about, removable = self.about, self._removable
        attended = _Round(self._prefix, self.rounds, self._rank, self._ranks, about, post, timeout, removable)
        self._kept.append(attended.verdict_key if self._rank == LEADER else attended.key(self._rank))
        # Taken: a round that does not end well may still be using its line, so the next one gets a new line.
        line, self._line = self._line, None
        try:
            line = line or _Line(self._store)
            verdict = line.attend(attended)
        except RuntimeError as problem:  # torch's DistStoreError and DistNetworkError are among them
            what = f"{type(problem).__name__}: {(str(problem).splitlines() or ['no message'])[0]}"
            raise RegistrationError(
                f"{self.about}: the c10d store failed at {post.topic!r} ({what}); on this rank {post.consequence}. "
                "The process that holds the store (rank 0 of the job) has likely ended"
            ) from problem
        finally:
            self.trips += attended.trips + len(removable)
        self._line = line
        if verdict.kind != "timeout":
            # All ranks have come to this round, so they have read the verdicts before it; and the leader, who judged,
            # has read all posts. Only the verdict of this round may still be wanted.
            end = len(self._kept) - (self._rank == LEADER)
            self._removable, self._kept = self._kept[:end], self._kept[end:]
        return verdict


class _Line:
    """A thread with a connection to the store.

    The thread lets a signal (Ctrl-C) through to the caller, and makes the deadline hold even if the machine behind the
    store no longer answers. The connection is our own, because a wait blocks every other user of a connection.
    """

    def __init__(self, store: Store) -> None:
        self._tasks: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(self._tasks, store), name="tracehook-agreement", daemon=True).start()

    def __del__(self) -> None:
        self._tasks.put(None)

    def attend(self, attended: _Round) -> _Verdict:
        """Take part in a round; raises what the store raises. A line on which this has raised is of no more use."""
        self._tasks.put(attended)
        try:
            outcome = attended.outcome.get(timeout=attended.timeout + GRACE)
        except queue.Empty:
            outcome = RuntimeError(f"no answer within {GRACE:g} s after the deadline")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @staticmethod
    def _serve(tasks: queue.SimpleQueue[_Round | None], shared: Store) -> None:
        own: Store | None = None
        while attended := tasks.get():
            try:
                own = own or cloned_store(shared)
                attended.outcome.put(attended.run(own))
                attended.clean(own)  # nobody waits for this any more
            except BaseException as problem:
                attended.outcome.put(problem)
            del attended


@dataclass
class _Round:
    """One rank's part in one round. Shares nothing with later rounds, because it may outlive an interrupted call."""

    prefix: str
    number: int
    rank: int
    ranks: int
    about: str
    post: _Post
    timeout: float
    removable: Sequence[str]

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout
        self.trips = 0
        self.outcome: queue.SimpleQueue[_Verdict | BaseException] = queue.SimpleQueue()
        self.verdict_key = self.key("verdict")
        self.leader_key = f"{self.prefix}/leader"  # holds the number of the round that the leader has come to

    def key(self, name: object) -> str:
        """Return a key that only this round uses."""
        return f"{self.prefix}/{self.number}/{name}"

    def run(self, store: Store) -> _Verdict:
        """Post, wait, propose a verdict if there is none, and return the one that stands."""
        self._store = store
        is_leader = self.rank == LEADER
        if is_leader:
            self._call(store.set, self.leader_key, str(self.number))
        else:
            self._call(store.set, self.key(self.rank), json.dumps(self.post))
        proposal = self._lead() if is_leader else self._follow()
        stands = self._call(store.compare_set, self.verdict_key, "", json.dumps(proposal))
        return _Verdict(*json.loads(stands))

    def clean(self, store: Store) -> None:
        """Remove this rank's keys of rounds that nobody reads any more."""
        for key in self.removable:
            store.delete_key(key)

    def _lead(self) -> _Verdict | None:
        keys = [self.key(rank) for rank in range(self.ranks) if rank != LEADER]
        if not self._call(self._store.check, keys):
            # A leader that comes late must not wait for posts: their ranks may have gone on to the next round.
            if self._call(self._store.check, [self.verdict_key]):
                return None
            missing = [] if self._wait(keys) else self._missing()
            if missing:
                return self._give_up(missing)
        # Most often all are equal: read each different one once.
        posts: list[bytes] = self._call(self._store.multi_get, keys)
        read = {data: _Post(*json.loads(data)) for data in set(posts)}
        return _judge(self.about, [self.post, *(read[data] for data in posts)])

    def _follow(self) -> _Verdict | None:
        return None if self._wait([self.verdict_key]) else self._give_up(self._missing())

    def _give_up(self, missing: Sequence[int]) -> _Verdict:
        what = f"{_named(missing)} did not come" if missing else f"rank {LEADER} came, but gave no verdict"
        waited = f"within the {self.timeout:g} s that rank {self.rank} waited at {self.post.topic!r}"
        return _Verdict("timeout", f"{self.about}: {what} {waited}; {self.post.consequence}", missing or [LEADER])

    def _missing(self) -> list[int]:
        """Return the ranks that have not come to this round."""
        keys = set(self._call(self._store.list_keys))
        came = {rank for rank in range(self.ranks) if self.key(rank) in keys}
        # Comparing with what the key never holds reads it without waiting for it.
        if self._call(self._store.compare_set, self.leader_key, "?", "?") == str(self.number).encode():
            came.add(LEADER)
        return [rank for rank in range(self.ranks) if rank not in came]

    def _wait(self, keys: list[str]) -> bool:
        """Wait until all keys are there, or the time is up; tell whether they are there."""
        if not self._store.has_extended_api():
            # A FileStore would poll as well, and look at its time limit in steps of a whole second.
            while not self._call(self._store.check, keys):
                if time.monotonic() >= self.deadline:
                    return False
                time.sleep(POLL_INTERVAL)
            return True
        # Rounded up, so that an error before the deadline is a failure of the store. Zero would mean: for ever.
        left = max(1, math.ceil((self.deadline - time.monotonic()) * 1000) + 1)
        try:
            self._call(self._store.wait, keys, timedelta(milliseconds=left))
        except RuntimeError:
            if time.monotonic() < self.deadline:
                raise
            return False
        return True

    def _call(self, operation: Callable[..., Any], *given: Any) -> Any:
        self.trips += 1
        return operation(*given)


def _judge(about: str, posts: Sequence[_Post]) -> _Verdict:
    """Compare the posts of all ranks, in the order of the ranks."""
    act, topic, entries = first = posts[0]
    if any(post[:2] != first[:2] for post in posts):
        wishes = [f"to {post.act} {post.topic!r}" for post in posts]
        return _Verdict("mismatch", f"{about}: the ranks are not at the same point: {_told(wishes)}; no rank goes on")
    if act == "confirm":
        failed = {reason: ranks for reason, ranks in _grouped([post.entries[0] for post in posts]).items() if reason}
        told = "; ".join(f"on {_named(ranks)}: {reason}" for reason, ranks in failed.items())
        text = f"{about}: {topic!r} failed {told}; {first.consequence}"
        reasons = {rank: reason for reason, ranks in failed.items() for rank in ranks}
        return _Verdict("failed", text, data=reasons) if failed else _Verdict("ok")
    if act == "share":
        everywhere = set(entries).intersection(*(post.entries for post in posts))
        return _Verdict("ok", data=[entry for entry in entries if entry in everywhere])
    if all(post.entries == entries for post in posts):
        return _Verdict("ok")
    # Padded with None, so that a list which ends earlier differs there.
    columns = enumerate(itertools.zip_longest(*(post.entries for post in posts)), start=1)
    position, column = next((position, column) for position, column in columns if len(set(column)) > 1)
    told = _told(["nothing" if entry is None else repr(entry) for entry in column])
    text = f"{about}: the ranks differ at {topic!r}, entry {position}: {told}; {first.consequence}"
    return _Verdict("mismatch", text)


def _told(wishes: Sequence[str]) -> str:
    """Say who wants what: the majority first, then the odd ones."""
    groups = sorted(_grouped(wishes).items(), key=lambda group: -len(group[1]))
    parts = [f"{_named(ranks)} want{'s' * (len(ranks) == 1)} {wish}" for wish, ranks in groups[:MOST_GROUPS]]
    if len(groups) > MOST_GROUPS:
        parts.append(f"and {len(groups) - MOST_GROUPS} more wishes")
    if len(groups[0][1]) > len(groups[1][1]):
        parts[1] = f"the odd one{'s' * (len(parts) > 2)} out: {parts[1]}"
    return "; ".join(parts)


def _grouped(values: Sequence[str]) -> dict[str, list[int]]:
    return {value: [rank for rank, own in enumerate(values) if own == value] for value in dict.fromkeys(values)}


def _named(ranks: Sequence[int]) -> str:
    """Name ranks, which ascend, with runs of three and more as ``4-7``."""
    runs = [[rank for _, rank in run] for _, run in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    told = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(told)}"

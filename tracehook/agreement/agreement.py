"""The ranks of a communicator compare what they are about to do, with a deadline, before any collective call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracehook.agreement import rounds
from tracehook.agreement.handshake import greeting
from tracehook.agreement.rank_names import NOBODY, RankNames
from tracehook.agreement.rounds import LEADER, RoundTopology
from tracehook.agreement.store_worker import StoreWorkers, Task
from tracehook.agreement.verdicts import Post, RoundVerdict, judge
from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.hook.background import END
from tracehook.log import clock

if TYPE_CHECKING:
    from torch.distributed import Store


class Waiting(NamedTuple):
    """A round that this rank is in. `since`: seconds of the monotonic clock."""

    topology: RoundTopology
    number: int
    post: Post
    since: float


class RoundFollower(Protocol):
    """Hears of each round while it runs, and of a verdict that leaves the ranks apart."""

    def following(self, waiting: Waiting) -> contextlib.AbstractContextManager[None]:
        """Look after a round for the time of a ``with`` statement."""

    def diverged(self, verdict: RoundVerdict) -> None:
        """Some rank has gone on alone, so that no further call may be made."""

    def shaken(self, shaken: Mapping[str, Any]) -> None:
        """All ranks have heard each other's greeting, and share this from now on; see handshake.py."""


@contextlib.contextmanager
def telling_of_the_store(about: str, post: Post) -> Iterator[None]:
    """Say in exceptions of the store what they are about."""
    try:
        yield
    except RegistrationError:
        raise
    except RuntimeError as problem:  # torch's DistStoreError and DistNetworkError are among them
        what = f"{type(problem).__name__}: {(str(problem).splitlines() or ['no message'])[0]}"
        raise RegistrationError(
            f"{about}: the c10d store failed at {post.topic!r} ({what}); on this rank {post.consequence}. "
            "The process that holds the store (rank 0 of the job) has likely ended",
            advice="Look at why it ended, and restart the job",
        ) from problem


class Agreement:
    """One sequence of rounds of the ranks of one communicator.

    There is one instance per (communicator, channel) and process, and every rank calls the same methods in the same
    order. `position` says where in its program a rank makes a call; see README.md. One thread at a time: a second one
    waits for the round of the first, and its own deadline counts from then.

    What a round raises, with one text on all ranks: :class:`RegistrationMismatch` if they want different things,
    :class:`RegistrationTimeout` if the ranks in `missing` did not come within `timeout` seconds, or this rank came
    late, :class:`RegistrationFailed` if it failed on some rank, or one declined at this position. And
    :class:`RegistrationError` if the store has failed, or the ranks can no longer be level.
    """

    def __init__(
        self,
        workers: StoreWorkers | Store | None,
        channel: str,
        rank: int,
        ranks: int,
        about: str,
        follower: RoundFollower | None = None,
        place: Sequence[str] = (),
        names: RankNames = NOBODY,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.rounds = 0
        self.trips = 0
        self.about = about
        self.ended: str | None = None  # why there is no further round
        self._workers = workers if isinstance(workers, StoreWorkers) else StoreWorkers(workers)
        self._own = RoundTopology(f"tracehook/{channel}", rank, ranks, about, 0.0, names)  # no time-out yet
        self._follower = follower
        self._greeting = greeting(place, settings or {})  # empty when all have heard it
        self.domain = ""  # what joins the ranks: see handshake.domain
        self._unheard: tuple[RoundTopology, int, Post, str] | None = None  # this rank does not know that verdict
        self._lock = threading.Lock()
        # Keys for this rank to remove. Some rank may still need those that are kept, nobody the removable ones.
        self._kept: list[str] = []
        self._kept_verdicts: list[str] = []
        self._removable: list[str] = []

    def compare(self, topic: str, entries: Sequence[str], timeout: float, position: Sequence[int] = ()) -> bool:
        """Return when all ranks have come with this topic and these entries.

        Returns:
            whether some rank's position is not known: its calls may be ahead of the others', or behind.

        """
        return bool(self._hold(Post("compare", topic, list(entries), position), timeout).data)

    def level(
        self, topic: str, told: tuple[str, int, bool], timeout: float, position: Sequence[int] = ()
    ) -> tuple[int, bool]:
        """Tell the others how far this rank is, as :mod:`fence` has it, and return how far all are."""
        failure, calls, in_flight = told
        entries = [failure, str(calls), "in flight" if in_flight else ""]
        most, level = self._hold(Post("level", topic, entries, position), timeout).data
        return most, level

    def use(self, topic: str, entries: Sequence[str], timeout: float, call: int) -> None:
        """Like :meth:`compare`, for a call into NCCL: ranks that come with calls of other numbers can't be level."""
        self._hold(Post("use", topic, list(entries), (call,)), timeout)

    def confirm(self, topic: str, failure: str, timeout: float, position: Sequence[int] = (), share: int = 0) -> int:
        """Tell the others that this rank succeeded (`failure` is empty) or why not; return if all ranks did.

        Returns:
            the largest `share` of all ranks.

        """
        return int(self._hold(Post("confirm", topic, [failure, str(share)], position), timeout).data)

    def common(self, topic: str, entries: Sequence[str], timeout: float, position: Sequence[int] = ()) -> list[str]:
        """Return the entries that all ranks have come with, in the order in which rank 0 has them."""
        return list(self._hold(Post("share", topic, list(entries), position), timeout).data)

    def exchange(self, topic: str, entries: Sequence[str], timeout: float) -> list[list[str]]:
        """Return what each rank has come with, in the order of the ranks."""
        return list(self._hold(Post("exchange", topic, list(entries)), timeout).data)

    def is_declined(self) -> bool:
        """Whether the next round is over before this rank came to it, because some rank cannot go on."""
        store = self._workers.store
        return store is not None and bool(store.check([self.topology().verdict_key(self.rounds + 1)]))

    def decline(
        self, topic: str, why: str, timeout: float, position: Sequence[int] = (), *, waits: bool = False
    ) -> None:
        """Tell the others that this rank does not come to the call at `position`, so that they need not wait.

        An empty `topic` stands for any. Those who never make that call do not hear of it. Raises nothing and does not
        wait, because the caller has an error already; one that `waits` hears of a store that fails. Does nothing while
        another thread is in a round.
        """
        if self._own.ranks == 1 or not self._lock.acquire(blocking=False):
            return
        try:
            self.rounds += 1
            topology = self.topology(timeout)
            post = Post("decline", topic, [why], position, self._greeting)
            task = Task(rounds.decline(topology, self.rounds, post, why), timeout)
            (self._workers.carry_out if waits else self._workers.submit)(task)
            self._keep(topology, self.rounds)
        finally:
            self._lock.release()

    def answer(self, data: Any, timeout: float) -> None:
        """Let those go on with `data` who are in the next round, or will be, because this rank need not come to it.

        Raises nothing and does not wait.
        """
        self.rounds += 1
        topology = self.topology(timeout)
        verdict = RoundVerdict("ok", data=data)
        self._workers.submit(Task(rounds.claim(topology.verdict_key(self.rounds), verdict), timeout))

    def has_come_to(self, verdict_key: str) -> bool:
        """Whether this rank is, or was, in the round whose verdict has that key."""
        number, _, rest = verdict_key.removeprefix(f"{self._own.prefix}/").partition("/")
        return rest == "verdict" and number.isdigit() and int(number) <= self.rounds

    def keys_at_end(self) -> list[str]:
        """Return those of this rank's keys that nobody reads once it has no communicator: all but the last verdict."""
        return list(self._removable)

    def _hold(self, post: Post, timeout: float) -> RoundVerdict:
        with self._lock:
            verdict = self._verdict(post, timeout)
        if verdict.kind == "timeout":
            is_late = self._own.rank in verdict.missing
            late = f"{self.about}: this rank ({self._own.who}) came late itself. " if is_late else ""
            raise RegistrationTimeout(late + verdict.text, verdict.missing)
        if verdict.kind in ("failed", "declined"):
            raise RegistrationFailed(verdict.text, {int(rank): why for rank, why in verdict.data.items()})
        if verdict.kind == "diverged" and self._follower is not None:
            self._follower.diverged(verdict)
        if verdict.kind != "ok":
            advice = "" if verdict.kind == "diverged" else None  # whose text ends with it
            raise RegistrationMismatch(
                verdict.text, verdict.data if verdict.kind == "mismatch" else None, advice=advice
            )
        return verdict

    def _verdict(self, post: Post, timeout: float) -> RoundVerdict:
        deadline = clock.monotonic() + timeout
        while True:
            if self.ended is not None:
                raise RegistrationError(self.ended, advice="")
            self.rounds += 1
            if self._own.ranks == 1:
                return judge(self.about, [post], self._own.names)
            verdict = self._attend(post, timeout, max(0.0, deadline - clock.monotonic()))
            if rounds.is_for(verdict, post):
                return verdict

    def topology(self, timeout: float = 0.0) -> RoundTopology:
        """Return who takes part, as far as this rank knows now; `timeout`: seconds, for messages."""
        return self._own._replace(about=self.about, timeout=timeout)

    def _learn(self, verdict: RoundVerdict) -> None:
        """Share from now on what all ranks have said in their greetings."""
        if verdict.shaken is None or not self._greeting:
            return
        self._greeting = {}
        self.domain = verdict.shaken.get("domain", "")
        if self._follower is not None:
            self._follower.shaken(verdict.shaken)

    def _keep(self, topology: RoundTopology, number: int) -> None:
        """Take note of the keys of a round that are this rank's to remove."""
        self._kept.append(topology.post_key(number, self._own.rank))
        if self._own.rank == LEADER:
            self._kept.append(topology.count_key(number))
            self._kept_verdicts.append(topology.verdict_key(number))

    def _hear_of_the_last(self, post: Post, left: float) -> None:
        """Learn how the round ended in which this rank raised, or end it: all have to know alike what they share."""
        if self._unheard is None:
            return
        topology, number, former, why = self._unheard
        task = Task(rounds.leave(topology, number, former, why), left)
        with telling_of_the_store(self.about, post):
            verdict = self._workers.carry_out(task)
        self._unheard = None
        self._learn(verdict)

    def _attend(self, post: Post, timeout: float, left: float) -> RoundVerdict:
        self._hear_of_the_last(post, left)
        topology = self.topology(timeout)
        number = self.rounds
        post = post._replace(greeting=self._greeting)
        task = Task(rounds.attend(topology, number, post), left, self._removable, self._own.rank)
        try:
            waiting = Waiting(topology, number, post, clock.monotonic())
            followed = self._follower.following(waiting) if self._follower is not None else contextlib.nullcontext()
            with telling_of_the_store(self.about, post), followed:
                verdict: RoundVerdict = self._workers.carry_out(task)
        except BaseException as problem:
            why = type(problem).__name__
            self._unheard = topology, number, post, why
            if not isinstance(problem, RegistrationError):
                # Ctrl-C: the others hear it at once, and so does the worker that waits.
                leaving = rounds.leave(topology, number, post, why)
                self._workers.submit(Task(leaving, END))
            raise
        finally:
            self.trips += task.trips + len(task.removable)
            self._keep(topology, number)
        self._learn(verdict)
        if verdict.kind not in ("timeout", "declined", "skipped", "diverged") and not verdict.position:
            # All ranks have come to this round, so they have read the verdicts before it; and the rank that judged has
            # read all posts. Only the verdict of this round may still be wanted. A position means that the verdict came
            # from an alarm, and not from a rank that judged.
            self._removable = [*self._kept, *self._kept_verdicts[:-1]]
            self._kept, self._kept_verdicts = [], self._kept_verdicts[-1:]
        return verdict

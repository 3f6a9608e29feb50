"""The ranks of a communicator compare what they are about to do, with a deadline, before any collective call.

What a rank does in a round is in `rounds.py`, how the posts are judged in `verdicts.py`, who carries the steps out in
`lines.py`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.hook.background import END
from tracehook.symmetric_memory import levels, rounds
from tracehook.symmetric_memory.hosts import Board, Hosts, by_host, seen_by, unpacked
from tracehook.symmetric_memory.lines import Lines, Task
from tracehook.symmetric_memory.members import NOBODY, Members
from tracehook.symmetric_memory.part import LEADER, Part, Seat
from tracehook.symmetric_memory.verdicts import Post, RoundVerdict, judge

if TYPE_CHECKING:
    from torch.distributed import Store


class Waiting(NamedTuple):
    """A round that this rank is in. `since`: seconds of the monotonic clock."""

    task: Task
    part: Part
    number: int
    post: Post
    since: float

    def is_settled(self) -> bool:
        """Have the round end at the store; tell whether it ended on the board of the host before."""
        board = self.task.board
        return self.part.is_on_one_host and board is not None and board.close(self.number) is not None


class RoundFollower(Protocol):
    """Hears of each round while it runs, and of a verdict that leaves the ranks apart."""

    def following(self, waiting: Waiting) -> contextlib.AbstractContextManager[None]:
        """Look after a round for the time of a ``with`` statement."""

    def diverged(self, verdict: RoundVerdict) -> None:
        """Some rank has gone on alone, so that no further call may be made."""


class _Nobody:
    """Follows nothing."""

    @staticmethod
    def following(waiting: Waiting) -> contextlib.AbstractContextManager[None]:  # noqa: ARG004
        return contextlib.nullcontext()

    @staticmethod
    def diverged(verdict: RoundVerdict) -> None:
        pass


_NOBODY = _Nobody()


class Agreement:
    """One sequence of rounds of the ranks of one communicator.

    There is one instance per (communicator, channel) and process, and every rank calls the same methods in the same
    order. `position` says where in its program a rank makes a call. A rank that comes late to a round raises
    :class:`RegistrationTimeout`, saying so, if the others gave up at the same position; a rank that was never there
    goes on to the newest round. So the next call that all ranks make finds them level again, whatever happened before.
    One thread at a time: a second one waits for the round of the first, and its own deadline counts from then.
    """

    def __init__(
        self,
        lines: Lines | Store | None,
        channel: str,
        rank: int,
        ranks: int,
        about: str,
        follower: RoundFollower | None = None,
        host: str = "",
        members: Members = NOBODY,
        is_verified: bool = False,
    ) -> None:
        self.rounds = 0
        self.trips = 0
        self.about = about
        self._members = members
        self.ended: str | None = None  # why there is no further round
        self._lines = lines if isinstance(lines, Lines) else Lines(lines)
        self.prefix = f"tracehook/{channel}"
        self._rank = rank
        self._ranks = ranks
        self._follower: RoundFollower = follower or _NOBODY
        self._is_verified = is_verified  # its ranks also compare in the background
        self._own_host = host
        self._host = host  # what names this rank's host to the others; empty when all know, and if there is no board
        self._hosts = Hosts()
        self._board: Board | None = None
        self._levels = levels.seen_by(rank, [[each] for each in range(ranks)])
        # Before the ranks know who shares a host, and then with that. Any thread reads it.
        self.seats: list[Seat] = [Seat(self._part(0.0))]
        self._unheard: tuple[Part, int, Post, str] | None = None  # a round whose verdict this rank does not know
        self._lock = threading.Lock()
        # Keys for this rank to remove. Some rank may still need those that are kept, nobody the removable ones.
        self._kept: list[str] = []
        self._kept_verdicts: list[str] = []
        self._removable: list[str] = []

    def compare(self, topic: str, entries: Sequence[str], timeout: float, position: Sequence[int] = ()) -> bool:
        """Return when all ranks have come with this topic and these entries.

        Returns:
            whether some rank's position is not known: its calls may be ahead of the others', or behind.

        Raises:
            RegistrationMismatch: they want different things; the text is the same on all ranks.
            RegistrationTimeout: the ranks in `missing` did not come within `timeout` seconds, or this rank came late.
            RegistrationFailed: some rank declined at this position.
            RegistrationError: the store has failed, or the ranks can no longer be level.

        """
        return bool(self._hold(Post("compare", topic, list(entries), position), timeout).data)

    def level(
        self, topic: str, told: tuple[str, int, bool], timeout: float, position: Sequence[int] = ()
    ) -> tuple[int, bool]:
        """Tell the others how far this rank is, as :mod:`fence` has it, and return how far all are.

        Raises:
            RegistrationFailed: some rank could not come up to the others; the text is the same on all ranks.
            RegistrationMismatch, RegistrationTimeout, RegistrationError: as for :meth:`compare`.

        """
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

        Raises:
            RegistrationFailed: it failed on some rank; the text is the same on all ranks.
            RegistrationMismatch, RegistrationTimeout, RegistrationError: as for :meth:`compare`.

        """
        return int(self._hold(Post("confirm", topic, [failure, str(share)], position), timeout).data)

    def common(self, topic: str, entries: Sequence[str], timeout: float, position: Sequence[int] = ()) -> list[str]:
        """Return the entries that all ranks have come with, in the order in which rank 0 has them.

        Raises:
            RegistrationMismatch, RegistrationTimeout, RegistrationError: as for :meth:`compare`.

        """
        return list(self._hold(Post("share", topic, list(entries), position), timeout).data)

    def decline(self, topic: str, why: str, timeout: float, position: Sequence[int] = ()) -> None:
        """Tell the others that this rank does not come to the call at `position`, so that they need not wait.

        Those who never make that call do not hear of it. Raises nothing and does not wait, because the caller has an
        error already. Does nothing while another thread is in a round.
        """
        if self._ranks == 1 or not self._lock.acquire(blocking=False):
            return
        try:
            self.rounds += 1
            part = self._part(timeout)
            post = Post("decline", topic, [why], position)
            self._lines.submit(Task(rounds.decline(part, self.rounds, post, why), timeout, board=self._board))
            self._keep(part, self.rounds)
        finally:
            self._lock.release()

    def has_come_to(self, verdict_key: str) -> bool:
        """Whether this rank is, or was, in the round whose verdict has that key."""
        number, _, rest = verdict_key.removeprefix(f"{self.prefix}/").partition("/")
        return rest == "verdict" and number.isdigit() and int(number) <= self.rounds

    def keys_at_end(self) -> list[str]:
        """Return those of this rank's keys that nobody reads once it has no communicator: all but the last verdict."""
        return [*self._removable, *([self._part(0.0).leader_key] if self._rank == LEADER else [])]

    def _hold(self, post: Post, timeout: float) -> RoundVerdict:
        with self._lock:
            verdict = self._verdict(post, timeout)
        if verdict.kind == "timeout":
            is_late = self._rank in verdict.missing
            late = f"{self.about}: this rank ({self._members.number(self._rank)}) came late itself. " if is_late else ""
            raise RegistrationTimeout(late + verdict.text, verdict.missing)
        if verdict.kind in ("failed", "declined"):
            raise RegistrationFailed(verdict.text, {int(rank): why for rank, why in verdict.data.items()})
        if verdict.kind == "diverged":
            self._follower.diverged(verdict)
        if verdict.kind != "ok":
            advice = "" if verdict.kind == "diverged" else None  # whose text ends with it
            raise RegistrationMismatch(
                verdict.text, verdict.data if verdict.kind == "mismatch" else None, advice=advice
            )
        return verdict

    def _verdict(self, post: Post, timeout: float) -> RoundVerdict:
        deadline = time.monotonic() + timeout
        while True:
            if self.ended is not None:
                raise RegistrationError(self.ended, advice="")
            self.rounds += 1
            if self._ranks == 1:
                return judge(self.about, [post], self._members)
            verdict = self._attend(post, timeout, max(0.0, deadline - time.monotonic()))
            if rounds.is_for(verdict, post):
                return verdict

    @property
    def neighbours(self) -> Sequence[int]:
        """The ranks that are known to share this rank's host, with itself; empty if none is, or not yet."""
        return self._hosts.neighbours

    def _part(self, timeout: float) -> Part:
        return Part(self.prefix, self._rank, self._ranks, self.about, timeout, self._hosts, self._members, self._levels)

    def _meet_neighbours(self, numbers: Sequence[int], number: int) -> None:
        """Meet the ranks of this host on a board after round `number`, in which all ranks have read who they are."""
        self._host, self._hosts = "", seen_by(self._rank, numbers)
        self._levels = levels.seen_by(self._rank, by_host(numbers))
        if len(self.seats) == 1:
            # Here, because all ranks do so now: a board that not all open leaves its file.
            board = Board(f"{self.prefix}/samples", self._hosts.neighbours, self._rank) if self._is_verified else None
            self.seats.append(Seat(self._part(0.0), board))
        if self._hosts.neighbours:
            self._board = Board(f"{self.prefix}/{number}", self._hosts.neighbours, self._rank)

    def _leave_closed_board(self) -> None:
        """Name this rank's host again: the ranks meet on a new board when all have done so."""
        if self._board is not None and self._board.is_closed:
            self._host, self._hosts, self._board = self._own_host, Hosts(), None

    def _keep(self, part: Part, number: int) -> None:
        """Take note of the keys of a round that are this rank's to remove."""
        if self._rank != LEADER:
            self._kept.append(part.post_key(number, self._rank))
        if part.collects:
            self._kept.append(part.shard_key(number, self._rank))
        if self._rank == LEADER or part.collects:
            self._kept_verdicts.append(part.copy_key(number, self._rank))

    def _hear_of_the_last(self, post: Post, left: float) -> None:
        """Learn how the round ended in which this rank raised, or end it: all have to know alike who shares a host."""
        if self._unheard is None:
            return
        part, number, former, why = self._unheard
        task = Task(rounds.leave(part, number, former, why), left, board=self._board)
        with self._telling_of_the_store(post):
            verdict = self._lines.carry_out(task)
        self._unheard = None
        self._learn(verdict, number)

    def _learn(self, verdict: RoundVerdict, number: int) -> None:
        if verdict.hosts:
            self._meet_neighbours(unpacked(verdict.hosts), number)

    @contextlib.contextmanager
    def _telling_of_the_store(self, post: Post) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:  # torch's DistStoreError and DistNetworkError are among them
            what = f"{type(problem).__name__}: {(str(problem).splitlines() or ['no message'])[0]}"
            raise RegistrationError(
                f"{self.about}: the c10d store failed at {post.topic!r} ({what}); on this rank {post.consequence}. "
                "The process that holds the store (rank 0 of the job) has likely ended",
                advice="Look at why it ended, and restart the job",
            ) from problem

    def _attend(self, post: Post, timeout: float, left: float) -> RoundVerdict:
        self._hear_of_the_last(post, left)
        part = self._part(timeout)
        number = self.rounds
        steps = rounds.attend(part, number, post._replace(host=self._host))
        task = Task(steps, left, self._removable, self._board, self._rank)
        try:
            waiting = Waiting(task, part, number, post, time.monotonic())
            with self._telling_of_the_store(post), self._follower.following(waiting):
                verdict = self._lines.carry_out(task)
        except BaseException as problem:
            why = type(problem).__name__
            self._unheard = part, number, post, why
            if not isinstance(problem, RegistrationError):
                # Ctrl-C: the others hear it at once, and so does the line that waits.
                self._lines.submit(Task(rounds.leave(part, number, post, why), END, board=self._board))
            raise
        finally:
            if task.trips:  # else the board was enough, and nothing was written to the store or removed
                self.trips += task.trips + len(task.removable)
                self._keep(part, number)
        self._leave_closed_board()
        self._learn(verdict, number)
        if verdict.kind not in ("timeout", "declined", "skipped", "diverged") and not verdict.position:
            # All ranks have come to this round, so they have read the verdicts before it; and the leader, who judged,
            # has read all posts. Only the verdict of this round may still be wanted. A position means that the verdict
            # came from an alarm, and not from the leader.
            end = len(self._kept_verdicts) - bool(task.trips)
            still = [] if task.trips else self._removable
            self._removable = [*still, *self._kept, *self._kept_verdicts[:end]]
            self._kept, self._kept_verdicts = [], self._kept_verdicts[max(0, end) :]
        return verdict

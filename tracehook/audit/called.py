"""What each process called each communicator for, and how it ended: what :mod:`blame` reasons about.

Collectives of one communicator are numbered alike on all its ranks, so a rank that made fewer has not come to the next
one. A send and its receive are counted for each pair of ranks.
"""

from __future__ import annotations

import functools
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.audit.group import KNOWN, known_in
from tracehook.audit.stacks import ProgramLine, program_line
from tracehook.log.calls import MAKING, ON_HOST, Call, Calls, parse
from tracehook.log.file_name import stacks_of

if TYPE_CHECKING:  # watch reads no database
    from tracehook.audit.store import Store

COLLECTIVE, TRANSFER, MADE, HOST = range(4)  # what the number of a call counts; of HOST, nothing
BY_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # how launchers and operators end processes


class Member(NamedTuple):
    """One process's part in one communicator."""

    process: Caller
    calls: Calls

    def call(self, number: int) -> Call | None:
        """Return the collective of that number; None if it was not made, or is not remembered."""
        last = self.calls.last
        place = number - last[0].number if last else -1
        return last[place] if 0 <= place < len(last) else None


_MEANWHILE = 1_000_000_000  # nanoseconds; when a rank came to a call is known to a tenth of a second
_DEFAULT_STREAM = 1  # CUDA's own number of it


class Step(NamedTuple):
    """One call in the order of its process."""

    comm: str
    role: int  # the communicator's number in its process: programs that are alike make them in one order
    call: Call
    is_transfer: bool
    function: str = ""  # in which the host waits: one of torch.distributed, or the agreement of tracehook

    @property
    def kind(self) -> int:
        """What its number counts."""
        if self.call.what == ON_HOST:
            return HOST
        return MADE if self.call.what == MAKING else TRANSFER if self.is_transfer else COLLECTIVE

    @property
    def is_semaphore(self) -> bool:
        """Whether a stream waits in it for a peer."""
        return self.is_transfer and self.call.is_semaphore

    @property
    def stream(self) -> int:
        """The stream of a call of peers; 0: of calls into NCCL, which have streams of their own.

        A collective with ``async_op=True`` holds up the default stream from its ``wait()`` on, and nobody counts that.
        """
        return (self.call.digest or _DEFAULT_STREAM) if self.is_semaphore else 0

    @property
    def token(self) -> tuple[int, int, int, int]:
        """What has to be alike in ranks that run the same program; the root and the peer need not."""
        return self.role, self.call.what, self.call.elements, self.call.root if not self.is_transfer else -1


def name_of(rank: int | None, pid: int | None) -> str:
    """Return what to call a process."""
    return f"rank {rank}" if rank is not None else f"pid {pid}"


@dataclass(eq=False)
class Caller:
    """One process. Times: nanoseconds since the job began; None: not known."""

    number: int  # in table ``process``
    rank: int | None
    pid: int | None
    ended: bool  # in order: its log has an end
    how: str | None = None  # Python ended: exit, exception, os._exit; None: it did not say
    status: int | None = None  # that os._exit, or the end of Python, had
    exception: str | None = None  # type and first line, if one ended it
    signal: int | None = None
    sender: int | None = None  # the process that sent it
    ended_ns: int | None = None  # when, as far as is known
    alive_ns: int | None = None  # when the thread of its log last ran, if its ring says so
    last_event: str | None = None
    shift_ns: int = 0  # from CLOCK_MONOTONIC to the times here
    wall_ns: int = 0  # from CLOCK_MONOTONIC to the wall clock
    began_ns: int | None = None  # by CLOCK_MONOTONIC
    world_size: int | None = None
    parts: dict[str, Calls] = field(default_factory=dict)  # by communicator
    making: list[Calls] = field(default_factory=list)  # communicators that NCCL is making, and waits for other ranks
    aborted_ns: dict[str, int] = field(default_factory=dict)  # when the program aborted communicators
    destroyed_ns: dict[str, int] = field(default_factory=dict)
    stacks: Path | None = None  # where it may have written the stacks of its threads
    runs: bool = False  # still
    # Of torch, as far as no communicator of theirs is known: their ranks, and whether they may have one of NCCL.
    groups: list[tuple[list[int], bool]] = field(default_factory=list)
    agreeing: set[str] = field(default_factory=set)  # communicators in whose agreements it waits
    uncounted: int = 0  # communicators whose calls were not counted: others lived, as many as are counted at a time

    def gave_up(self, comm: str) -> bool:
        """Whether it aborted a communicator and went on: it ended by itself, or made another one later."""
        calls = self.parts[comm]
        went_on = any(other.born_ns > calls.moved_ns for other in self.parts.values())
        return calls.aborted and ((self.ended and self.how != "exception") or self.how == "os._exit" or went_on)

    def last_said(self, comm: str, waited_ns: int | None) -> str:
        """Say that it ended a communicator itself, before another rank waited there; or what its log has last."""
        for how, when in (("aborted", self.aborted_ns.get(comm)), ("destroyed", self.destroyed_ns.get(comm))):
            if when is not None and waited_ns is not None and when < waited_ns + _MEANWHILE:
                return f"; before, it {how} this communicator"
        return f"; the last thing that it logged was {self.last_event}" if self.last_event else ""

    def take(self, calls: Calls) -> None:
        """Add a communicator, or one that is being made."""
        if calls.making is not None:
            self.making.append(calls)
        else:
            self.parts[calls.comm] = calls

    @property
    def name(self) -> str:
        """What to call it."""
        return name_of(self.rank, self.pid)

    @property
    def was_ended(self) -> bool:
        """Whether another process ended it: what it had not done by then is not its fault."""
        return self.signal in BY_OTHERS and self.sender not in (None, self.pid)

    @property
    def was_interrupted(self) -> bool:
        """Whether somebody pressed Control-C."""
        return self.exception is not None and self.exception.startswith("KeyboardInterrupt")

    @property
    def failed(self) -> bool:
        """Whether Python said that it ended otherwise than in order, for itself."""
        by_exit = self.how == "os._exit" and self.status != 0
        return (self.how == "exception" or by_exit or self.exception is not None) and not self.was_interrupted

    @property
    def ended_well(self) -> bool:
        """Whether its program came to its end, and said nothing of a failure."""
        return not self.failed and ((self.ended and self.how == "exit") or self.how == "os._exit")

    @functools.cached_property
    def remembered_since(self) -> int:
        """The place in the order of the process from which on all calls are remembered."""
        since = 0
        for calls in self.parts.values():
            for made, last in ((calls.collectives, calls.last), (calls.transfers, calls.last_transfers)):
                if made > len(last):
                    since = max(since, last[0].order if last else 1 << 32)
        return since

    @functools.cached_property
    def made(self) -> int:
        """How many calls it made, in all its communicators."""
        return sum(calls.collectives + calls.transfers for calls in self.parts.values())

    @functools.cached_property
    def in_order(self) -> list[Step]:
        """The calls that are remembered, in the order of the process. Calls of two threads may have one place in it."""
        found = [Step(comm, its.comm_id, call, False) for comm, its in self.parts.items() for call in its.last]
        found += [
            Step(comm, its.comm_id, call, True) for comm, its in self.parts.items() for call in its.last_transfers
        ]
        return sorted(found, key=lambda step: (step.call.order, step.role, step.call.number))

    @functools.cached_property
    def steps(self) -> dict[int, Step]:
        """The calls that are remembered, by their place in the order of the process."""
        return {step.call.order: step for step in self.in_order}

    @functools.cached_property
    def group_call(self) -> str:
        """The function of torch.distributed in which its host was after its last call into NCCL, if that is known."""
        return self.at.group_call if self.at is not None else ""

    @functools.cached_property
    def at(self) -> ProgramLine | None:
        """The line of the program in which its host was after its last call into NCCL, if that is known."""
        return program_line(self.stacks, (self.moved_ns or 0) - self.shift_ns) if self.stacks is not None else None

    @functools.cached_property
    def is_far_behind(self) -> bool:
        """Whether its device stands so many calls behind its program that nobody knows where."""
        return any(step.call.is_far_ahead for step in self.in_order)

    def doubt_the_device(self) -> None:
        """Where its device has not come to the first call that is remembered, it may stand before one that is not."""
        lasts = (last for calls in self.parts.values() for last in (calls.last, calls.last_transfers) if last)
        if any(last[0].is_ahead and last[0].number > 0 for last in lasts):
            for comm, its in self.parts.items():
                last, transfers = (tuple(call.far_ahead for call in made) for made in (its.last, its.last_transfers))
                self.parts[comm] = its._replace(last=last, last_transfers=transfers)

    def transfer_numbers(self) -> dict[tuple[str, str, int], int]:
        """Return how many transfers of its kind, with its peer, came before each that is remembered."""
        found: dict[tuple[str, str, int], int] = {}
        for comm, calls in self.parts.items():
            sends, receives = ("signal", "wait") if calls.is_of_peers else ("send", "recv")
            made = {(sends, peer.rank): peer.sent for peer in calls.peers}
            made |= {(receives, peer.rank): peer.received for peer in calls.peers}
            for call in reversed(calls.last_transfers):
                key = (call.operation, call.root)
                made[key] = made.get(key, 0) - 1
                found[comm, call.operation, call.number] = made[key]
        return found

    @property
    def last_step(self) -> Step | None:
        """The last call into NCCL; None if there was none, or if it may be one that was not counted."""
        made = (step for step in reversed(self.in_order) if not step.call.is_of_peers)
        return next(made, None) if not self.uncounted else None

    @property
    def moved_ns(self) -> int | None:
        """When it last called any communicator."""
        moved = [calls.moved_ns + self.shift_ns for calls in (*self.parts.values(), *self.making)]
        return max(moved, default=None)


class Wait(NamedTuple):
    """Who waits in which call, for whom."""

    process: Caller
    comm: str
    step: Step
    number: int  # of the collective, or of the transfer of this kind with that peer; from 0
    missing: tuple[Caller, ...]
    made: int  # to how many such calls the first missing one came; of semaphores: how many it called
    is_last: bool  # it called nothing more
    some: int = 0  # it waits for so many of the missing, and nothing tells for which; 0: for all


def by_process(waited: Iterable[Wait]) -> dict[int, list[Wait]]:
    """Return the waits of each process, by its number."""
    found: dict[int, list[Wait]] = defaultdict(list)
    for wait in waited:
        found[wait.process.number].append(wait)
    return dict(found)


@dataclass
class Callers:
    """All processes that have a rank or used communicators, and who takes part in which communicator."""

    processes: list[Caller]
    names: dict[str, str]  # by communicator: what messages call it, if a group of torch stands for it
    members: dict[str, dict[int, Member]] = field(default_factory=dict)  # by communicator and rank in it
    standing: set[int] | None = None  # processes whose devices have not come to their calls, and wait for nobody there
    in_functions: dict[str, list[Caller]] = field(default_factory=dict)  # of torch.distributed, outside of NCCL

    def __post_init__(self) -> None:
        found: dict[str, dict[int, Member]] = defaultdict(dict)
        for process in self.processes:
            process.doubt_the_device()
            for comm, calls in process.parts.items():
                if calls.rank >= 0:
                    found[comm][calls.rank] = Member(process, calls)
        self.members = dict(found)

    def comparable(self) -> Iterator[tuple[str, dict[int, Member]]]:
        """Yield the communicators of several ranks of whose calls all were counted from the beginning."""
        for comm, members in self.members.items():
            if len(members) > 1 and not any(member.calls.adopted for member in members.values()):
                yield comm, members

    @functools.cached_property
    def told_to_end_ns(self) -> int | None:
        """When others, or Control-C, ended the first process."""
        told = (each.ended_ns for each in self.processes if each.was_ended or each.was_interrupted)
        return min((ns for ns in told if ns is not None), default=None)

    def was_killed_later(self, process: Caller) -> bool:
        """Whether a process that was killed still lived when others had been told to end: it did not do so in time."""
        told, alive = self.told_to_end_ns, process.ended_ns
        return told is not None and alive is not None and alive > told + _MEANWHILE

    def group(self, comm: str) -> str:
        """Name a communicator for a person: its group, if that has a name, and its global ranks."""
        members = self.members.get(comm, {})
        ranks = [members[place].process.rank for place in sorted(members)]
        told = f" (ranks {', '.join(map(str, ranks))})" if ranks and None not in ranks else ""
        if self.is_of_peers(comm):
            return f"PeerGroup{told}"
        if not comm:
            return "torch.distributed outside of NCCL"
        return self.names.get(comm) or f"communicator {comm}{told}"

    def size_of(self, comm: str) -> int:
        """Return how many ranks it has; all of the job if it is no communicator, but torch.distributed."""
        return len(self.members.get(comm, ())) if comm else len(self.processes)

    def is_of_peers(self, comm: str) -> bool:
        """Whether that is a group of peers, of which NCCL knows nothing."""
        return any(member.calls.is_of_peers for member in self.members.get(comm, {}).values())

    def described(self, comm: str, call: Call) -> str:
        """Say what was called, in words; a root or a peer by its name."""
        members = self.members.get(comm, {})
        member = members.get(next((each.calls.peer_of(call.root) for each in members.values()), -1))
        return call.described(member.process.name if member is not None else "")


def read_callers(store: Store) -> Callers:
    """Read the processes of a job, and what they called."""
    processes = {row["process"]: _process(row) for row in store.rows(_PROCESSES)}
    for number, process in processes.items():
        process.stacks = stacks_of(store.directory.logs[number].path)
    see_until_now(processes.values())
    for row in store.rows("SELECT * FROM event WHERE event = 'communicator.calls'"):
        calls = parse(row)
        if calls is not None and row["process"] in processes:
            processes[row["process"]].take(calls)
    for row in store.rows(_COMMUNICATORS_ENDED):
        if (its := processes.get(row["process"])) is not None:
            ended_ns = its.aborted_ns if row["event"] == "communicator.abort" else its.destroyed_ns
            ended_ns[row["comm"]] = row["ns"]
    for row in store.rows("SELECT process, members, backend FROM event WHERE event = ?", [KNOWN]):
        if (its := processes.get(row["process"])) is not None:
            its.groups.append(known_in(row))
    for row in store.rows(_AGREEING):
        if (its := processes.get(row["process"])) is not None:
            its.agreeing.add(row["comm"])
    for row in store.rows(_UNCOUNTED):
        if processes[row["process"]].parts:  # else its ring is not here
            processes[row["process"]].uncounted = row["uncounted"]
    wanted = [process for process in processes.values() if process.rank is not None or process.parts or process.making]
    named = store.rows("SELECT comm, group_of(comm) AS name FROM communicator_group")
    return Callers(wanted, {row["comm"]: row["name"] for row in named})


def see_until_now(processes: Collection[Caller]) -> None:
    """Let all that run be seen until one of them was: one that somebody stopped still stands where it stood."""
    running = [process for process in processes if process.runs]
    now_ns = max((process.alive_ns for process in running if process.alive_ns is not None), default=None)
    for process in running:
        process.ended_ns = now_ns


_PROCESSES = """
    SELECT process.*, epoch_ns(began) - began_ns AS wall_ns,
                      (SELECT arg_max(event.event, event.seq) FROM event
                       WHERE event.process = process.process AND seq IS NOT NULL) AS last_event
    FROM process WHERE NOT helper ORDER BY process
"""

_COMMUNICATORS_ENDED = """
    SELECT process, event, comm, ns FROM event
    WHERE event IN ('communicator.abort', 'communicator.retire') AND ns IS NOT NULL
"""

_AGREEING = """
    SELECT process, comm FROM event WHERE event IN ('agreement.waits', 'agreement.waited')
    GROUP BY process, comm HAVING arg_max(event, seq) = 'agreement.waits'
"""

# Every communicator has a place for its calls from its birth on, if one is free.
_UNCOUNTED = """
    SELECT process, count(DISTINCT comm) AS uncounted FROM event
    WHERE event = 'communicator.pending' AND process IN (SELECT process FROM process WHERE NOT helper)
      AND (process, comm) NOT IN (SELECT (process, comm) FROM event
                                  WHERE event = 'communicator.calls' AND comm IS NOT NULL)
    GROUP BY process
"""

# Of a process, what a caller has under the same name.
_COLUMNS = (
    *("rank", "pid", "ended", "how", "status", "signal", "sender", "alive_ns", "last_event", "shift_ns"),
    *("world_size", "runs"),
)


def _process(row: dict[str, Any]) -> Caller:
    exception = row.get("exception")
    if exception is not None and row.get("message"):
        exception = f"{exception}: {row['message']}"
    at = row["signal_ns"] + row["shift_ns"] if row["signal_ns"] is not None else row["alive_ns"]
    return Caller(
        number=row["process"],
        exception=exception,
        ended_ns=row["ended_ns"] if row["ended_ns"] is not None else at,
        wall_ns=row["wall_ns"] or 0,
        began_ns=row["began_ns"] if row["wall_ns"] is not None else None,
        **{name: row[name] for name in _COLUMNS},
    )

"""Our calls beside the records of torch's Flight Recorder: where in the program a call was made, and torch's number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracehook.audit.called import Caller, Callers, Step
from tracehook.audit.finding import Finding, ranges
from tracehook.audit.flight_recorder import Dump, DumpError, Frame, find_dumps, read_dump
from tracehook.audit.matching import find_record

_FRAMES = 4  # of a stack that are shown
# In the file of a frame that is not the program's.
_PLACES = (
    *("-packages/torch/", "/torch/distributed/", "<frozen "),
    *("/tracehook/symmetric_memory/", "/tracehook/integrations/", "/tracehook/rehearsal/"),
)
_ENDS = frozenset({"ended-by-exception", "exit-status", "no-end", "stalled"})  # rules about one process: its last call
_SECOND = 1_000_000_000
_SLACK_NS = 5 * _SECOND  # a clock that is set


@dataclass(frozen=True)
class Located:
    """A call with what torch recorded of it. `ranks`: those that made it alike, at one place."""

    finding: Finding
    ranks: tuple[int, ...]
    call: str  # of ours, in words
    number: int  # of ours, from 1: of the collective, or of the transfer
    group: str
    operation: str
    collective_seq_id: int | None
    p2p_seq_id: int | None
    state: str
    frames: tuple[Frame, ...]  # of the program, the innermost first

    @property
    def told(self) -> str:
        """Say what torch knows, in words."""
        number = f"p2p_seq_id {self.p2p_seq_id}" if self.p2p_seq_id is not None else ""
        number = number or f"collective_seq_id {self.collective_seq_id}"
        return f"torch: {self.operation} of group {self.group}, {number}, {self.state}"

    def as_json(self) -> dict[str, Any]:
        """Return it as what ``--json`` prints (docs/audit.md)."""
        return {
            "rule": self.finding.rule,
            "ns": self.finding.ns,
            "ranks": list(self.ranks),
            "call": self.call,
            "number": self.number,
            "group": self.group,
            "operation": self.operation,
            "collective_seq_id": self.collective_seq_id,
            "p2p_seq_id": self.p2p_seq_id,
            "state": self.state,
            "frames": [frame._asdict() for frame in self.frames],
        }


@dataclass
class Join:
    """What was found for the calls that findings name, and one line for each dump or call without an answer."""

    located: list[Located]
    said: list[str]

    @property
    def lines(self) -> list[str]:
        """Return it as lines for a person."""
        out: list[str] = []
        finding: Finding | None = None
        for each in self.located:
            if each.finding is not finding:
                finding = each.finding
                moment = f" at {finding.ns / _SECOND:.3f} s" if finding.ns is not None else ""
                out.append(f"{finding.rule}{moment}, in the program:")
            ranks = f"rank{'' if len(each.ranks) == 1 else 's'} {ranges(each.ranks)}"
            out.append(f"  {ranks}, {each.call} ({each.told})")
            out += [f"    {frame.function}, {frame.file}:{frame.line}" for frame in each.frames]
            out += (
                []
                if each.frames
                else ["    no stack: torch gave up waiting for it (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC)"]
            )
        return [*out, *(f"Flight Recorder: {line}" for line in self.said)]

    def as_json(self) -> dict[str, Any]:
        """Return it as what ``--json`` prints (docs/audit.md)."""
        return {"calls": [each.as_json() for each in self.located], "said": self.said}


def join(job: Callers, findings: Iterable[Finding], directory: Path) -> Join:
    """Look up the calls that findings name in the dumps of a directory. Reads the dumps of their ranks only."""
    joined = Join([], [])
    try:
        files = find_dumps(directory)
    except DumpError as problem:
        joined.said.append(str(problem))
        return joined
    recorders: dict[int, Dump | None] = {}
    for finding in findings:
        for process, step in _calls_of(job, finding):
            rank = process.rank
            if rank is None:
                continue
            if rank not in recorders:
                recorders[rank] = _dump_of(process, files, directory, joined.said)
            dump = recorders[rank]
            if dump is not None:
                _locate(job, finding, process, step, dump, joined)
    return joined


def _calls_of(job: Callers, finding: Finding) -> list[tuple[Caller, Step]]:
    """Return the calls that a finding names, or the last one of the process that it is about."""
    by_number = {process.number: process for process in job.processes}
    named = [(by_number[number], by_number[number].steps.get(order)) for number, order in finding.calls]
    if finding.rule in _ENDS:
        named = [(one, one.last_step) for one in job.processes if one.rank in finding.ranks and not one.was_ended]
    return [(process, step) for process, step in named if step is not None]


def _dump_of(process: Caller, files: dict[int, Path], directory: Path, said: list[str]) -> Dump | None:
    rank = process.rank
    if rank not in files:
        said.append(f"{directory}: no dump of rank {rank}")
        return None
    try:
        dump = read_dump(files[rank])
    except DumpError as problem:
        said.append(str(problem))
        return None
    if why := _not_of_this_job(process, dump):
        said.append(f"{dump.file.name}: of another job ({why}), so it was not used")
        return None
    return dump


def _not_of_this_job(process: Caller, dump: Dump) -> str:
    everybody = max((group.ranks for group in dump.groups.values()), key=len, default=())
    if process.world_size is not None and everybody and max(everybody) >= process.world_size:
        return f"it has a rank {max(everybody)}, the logs are of {process.world_size}"
    if everybody and process.rank not in everybody:
        return f"rank {process.rank} is in none of its groups"
    if dump.records and process.began_ns is not None:
        early = process.began_ns + process.wall_ns - dump.records[-1].created_ns
        if early > _SLACK_NS:
            return f"its last record is {early / _SECOND:.0f} s older than the process"
        if process.ended_ns is not None:
            late = dump.records[0].created_ns - (process.ended_ns - process.shift_ns + process.wall_ns)
            if late > _SLACK_NS:
                return f"its first record is {late / _SECOND:.0f} s younger than the process's end"
    return ""


def _locate(job: Callers, finding: Finding, process: Caller, step: Step, dump: Dump, joined: Join) -> None:
    call = step.call
    kind = "transfer" if step.is_transfer else "call"
    words = f"{kind} {call.number + 1} of {job.group(step.comm)}, {job.described(step.comm, call)}"
    found = find_record(job, process, step, dump)
    if found is None or process.rank is None:
        joined.said.append(f"{dump.file.name}: has no record that is rank {process.rank}'s {words}")
        return
    record, group = found
    made = Located(
        finding=finding,
        ranks=(process.rank,),
        call=words,
        number=call.number + 1,
        group=group.description if group.description not in ("", "undefined") else group.name,
        operation=record.operation,
        collective_seq_id=None if step.is_transfer else record.collective_seq_id,
        p2p_seq_id=record.p2p_seq_id if step.is_transfer else None,
        state=record.state,
        frames=_of_the_program(record.frames),
    )
    for place, other in enumerate(joined.located):
        if _without_ranks(other) == _without_ranks(made):
            joined.located[place] = Located(**vars(other) | {"ranks": tuple(sorted({*other.ranks, process.rank}))})
            return
    joined.located.append(made)


def _without_ranks(located: Located) -> dict[str, Any]:
    return vars(located) | {"ranks": ()}


def _of_the_program(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    own = [frame for frame in frames if not any(place in frame.file for place in _PLACES)]
    return tuple((own or list(frames))[:_FRAMES])

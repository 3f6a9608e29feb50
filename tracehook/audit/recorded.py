"""Our calls beside the records of torch's Flight Recorder: where in the program a call was made, and torch's number.

Both count in the order of the program, but not the same things:

* A collective is one call of NCCL and one record. torch numbers records from 1, so ours of number 11 is its 12.
* Coalesced collectives are one number of torch's, and several calls: one for each tensor.
* Gather, scatter, and all_to_all of lists are a collective of torch's, and sends and receives of ours.
* A batch of sends and receives is one number of torch's, with a record for each.

So a dump that lost no record is counted from its beginning, and otherwise from its end; and a call and a record belong
together only if operation and elements of all calls on the way agree with the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracehook.audit.called import Caller, Callers, Step
from tracehook.audit.finding import Finding
from tracehook.audit.flight_recorder import Dump, DumpError, Frame, Recorded, RecordedGroup, find_dumps, read_dump
from tracehook.log.calls import Call
from tracehook.log.text import ranks_in_words

_LATE_NS = 2_000_000_000  # a last call is noted to a tenth of a second
# What torch calls one collective of NCCL. `_coalesced`: one for each tensor.
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_reduce_barrier": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "all_gather": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
}
_MAYBE = ("all_to_all", "gather", "scatter")  # one collective of NCCL, or sends and receives

_Token = tuple[Recorded, int]  # a record, and which of its calls


def find_record(job: Callers, process: Caller, step: Step, dump: Dump) -> tuple[Recorded, RecordedGroup] | None:
    """Return the record of a call, and its group; of several groups with the same ranks the one that counted as we did.

    Where that does not tell, groups were made in the order of their communicators.
    """
    alike = [comm for comm in process.parts if _ranks_of(job, comm) == _ranks_of(job, step.comm)]
    place = sorted(alike, key=lambda comm: process.parts[comm].comm_id).index(step.comm)
    fits = []
    for number, group in enumerate(_groups(job, step, dump)):
        found = _record_of(job, process, step, group, dump)
        if found is not None:
            record, distance = found
            named = job.names.get(step.comm) in (group.description, f"group {group.name}")
            fits.append((not named, distance, abs(number - place), number, record, group))
    return min(fits, key=lambda fit: fit[:4])[4:] if fits else None


def _ranks_of(job: Callers, comm: str) -> set[int | None]:
    return {member.process.rank for member in job.members.get(comm, {}).values()}


def _groups(job: Callers, step: Step, dump: Dump) -> list[RecordedGroup]:
    """Return the groups that a communicator may be of. For sends of a larger group torch may make one of two ranks."""
    known = _ranks_of(job, step.comm)
    size = max((member.calls.size for member in job.members.get(step.comm, {}).values()), default=0)
    able = [group for group in dump.groups.values() if known <= set(group.ranks)]
    same = [group for group in able if len(group.ranks) == size]
    others = [group for group in able if len(group.ranks) > size == 2] if step.is_transfer else []
    return sorted(same, key=_age) + sorted(others, key=_age)


def _age(group: RecordedGroup) -> tuple[int, str]:
    return int(group.name) if group.name.isdecimal() else 1 << 62, group.name


def _record_of(
    job: Callers, process: Caller, step: Step, group: RecordedGroup, dump: Dump
) -> tuple[Recorded, int] | None:
    """Return the record of a call, and by how much torch's last number is not that of our last call."""
    records = [record for record in dump.records if record.group == group.name]
    if not records:
        return None
    part = process.parts[step.comm]
    if step.is_transfer:
        calls, total, tokens = _transfers(job, process, step, group, records)
        distance = abs(records[-1].p2p_seq_id - part.transfers)
    else:
        calls, total, tokens = _collectives(process, step, records)
        distance = abs(records[-1].collective_seq_id - part.collectives)
    place = calls.index(step.call)
    if dump.complete:
        begin = total - len(calls)
        if _agree(calls[: place + 1], tokens[begin : begin + place + 1]):
            return tokens[begin + place][0], distance
    if records[-1].created_ns < part.moved_ns + process.wall_ns - _LATE_NS:
        return None  # it made calls after the dump: the last record is not of the last call
    after = len(calls) - place
    if _agree(calls[place:], tokens[-after:]):
        return tokens[-after][0], distance
    return None


def _agree(calls: Sequence[Call], tokens: Sequence[_Token]) -> bool:
    return len(calls) == len(tokens) and all(map(_is_of, calls, tokens))


def _collectives(process: Caller, step: Step, records: Sequence[Recorded]) -> tuple[list[Call], int, list[_Token]]:
    part = process.parts[step.comm]
    made = {call.operation for call in part.last}
    tokens = []
    for record in records:
        if record.operation in _COLLECTIVES:
            count = len(record.sizes) if record.operation.endswith("_coalesced") else 1
        else:
            is_call = record.operation in _MAYBE and record.operation in made
            count = int(is_call and (record.operation != "all_to_all" or len(record.sizes) == 1))
        tokens += [(record, nth) for nth in range(count)]
    return list(part.last), part.collectives, tokens


def _transfers(
    job: Callers, process: Caller, step: Step, group: RecordedGroup, records: Sequence[Recorded]
) -> tuple[list[Call], int, list[_Token]]:
    """Take the sends to that peer, or the receives from it, only: those of a batch may be in another order."""
    part, wanted = process.parts[step.comm], step.call
    calls = [call for call in part.last_transfers if (call.root, call.operation) == (wanted.root, wanted.operation)]
    before = process.transfer_numbers()[step.comm, wanted.operation, wanted.number]
    total = before + len(calls) - calls.index(wanted)
    other = job.members[step.comm].get(wanted.root)
    rank = other.process.rank if other is not None else None
    peer = group.ranks.index(rank) if rank in group.ranks else wanted.root
    tokens = [(record, 0) for record in records if (record.operation, record.peer) == (wanted.operation, peer)]
    return calls, total, tokens


def _is_of(call: Call, token: _Token) -> bool:
    """Whether a call may be that of a record. Complex numbers are two elements each for NCCL."""
    record, nth = token
    operation = call.operation.removesuffix("_config").removesuffix("_in_place")
    if record.operation in _MAYBE:
        return operation == record.operation
    elements = record.sizes[nth] if nth < len(record.sizes) else -1
    same = operation == _COLLECTIVES.get(record.operation, record.operation)
    return same and call.elements in (elements, 2 * elements)


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
        told = {name: value for name, value in vars(self).items() if name != "finding"}
        told |= {"ranks": list(self.ranks), "frames": [frame._asdict() for frame in self.frames]}
        return {"rule": self.finding.rule, "ns": self.finding.ns, **told}


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
            out.append(f"  {ranks_in_words(each.ranks)}, {each.call} ({each.told})")
            out += [f"    {frame.function}, {frame.file}:{frame.line}" for frame in each.frames]
            if not each.frames:
                out.append("    no stack: torch gave up waiting for it (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC)")
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

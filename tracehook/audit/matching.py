"""Which record of torch's Flight Recorder is which call of ours.

Both count in the order of the program, but not the same things:

* A collective is one call of NCCL and one record. torch numbers records from 1, so ours of number 11 is its 12.
* Coalesced collectives are one number of torch's, and several calls: one for each tensor.
* Gather, scatter, and all_to_all of lists are a collective of torch's, and sends and receives of ours.
* A batch of sends and receives is one number of torch's, with a record for each.

So a dump that lost no record is counted from its beginning, and otherwise from its end; and a call and a record belong
together only if operation and elements of all calls on the way agree with the records.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracehook.audit.called import Caller, Callers, Step
from tracehook.audit.flight_recorder import Dump, Recorded, RecordedGroup
from tracehook.log.calls import Call

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
    total = process.transfers_before(step) + len(calls) - calls.index(wanted)
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

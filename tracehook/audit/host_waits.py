"""Who waits on the host, and not on a device.

NCCL makes a communicator on the host, which waits there for all ranks.

If some rank waits in NCCL, another one may wait for it in a function of torch.distributed without NCCL: in a barrier of
Gloo, or where ranks gather the objects of a checkpoint. In an agreement of tracehook a rank waits on the host, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from tracehook.audit.called import Caller, Callers, Step, Wait
from tracehook.log.calls import MAKING, ON_HOST, Call, Calls

AGREEMENT = "agreement of tracehook"
_NOBODY = ("", "isend", "irecv", "batch_isend_irecv", "destroy_process_group")  # waits in these, or only for itself
_ANSWERS = {"send": "recv", "recv": "send"}


def in_agreements(job: Callers, processes: Iterable[Caller], without: Caller | None = None) -> Iterator[Wait]:
    """Yield who waits in an agreement, for those of the communicator who are in none: all for the same tuple."""
    absent: dict[str, tuple[Caller, ...]] = {}
    for process in processes:
        for comm in sorted(process.agreeing & job.members.keys()):
            if comm not in absent:
                members = (member.process for _, member in sorted(job.members[comm].items()))
                absent[comm] = tuple(each for each in members if comm not in each.agreeing and each is not without)
            if absent[comm]:
                yield Wait(process, comm, _on_host(process, AGREEMENT, comm), 0, absent[comm], 0, True)


def _on_host(process: Caller, function: str, comm: str = "") -> Step:
    """Return where the host of a process waits, after its last call."""
    last = process.in_order[-1].call.order if process.in_order else 0
    return Step(comm, 0, Call(-1, ON_HOST, 0, -1, last), False, function)


def in_functions(processes: Iterable[Caller], in_nccl: Collection[int]) -> dict[str, list[Caller]]:
    """Return whose hosts are in functions of torch.distributed without NCCL, as in a barrier of Gloo."""
    there: dict[str, list[Caller]] = defaultdict(list)
    for process in processes:
        # Where not all calls were counted, it may wait in one of NCCL.
        is_counted = not process.uncounted and not any(calls.adopted for calls in process.parts.values())
        is_known = is_counted and not process.making
        if is_known and process.number not in in_nccl and process.group_call not in _NOBODY:
            there[process.group_call].append(process)
    return there


def on_hosts(job: Callers, without: Caller | None = None) -> Iterator[Wait]:
    """Yield who waits in such a function, for those of its group that are not in it.

    Which of its groups without NCCL that is, is not known: of these and all ranks, that in which the fewest miss. Who
    sends or receives waits for one of them.
    """
    for function, its in job.in_functions.items():
        answers = job.in_functions.get(_ANSWERS.get(function, ""), ())
        there = {process.number for process in (*its, *answers)}
        absent = [each for each in job.processes if each.rank is not None and each.number not in there]
        for process in its:
            of_groups = (
                [each for each in absent if each.rank in ranks] for ranks, is_nccl in process.groups if not is_nccl
            )
            fewest = min(filter(None, (absent, *of_groups)), key=len, default=absent)
            of_one = function in _ANSWERS
            missing = tuple(each for each in fewest if each is not without)
            if missing and process is not without and not (of_one and without in fewest):
                some = int(of_one and len(missing) > 1)
                yield Wait(process, "", _on_host(process, function), 0, missing, 0, True, some)


def making(job: Callers, process: Caller, own: Calls) -> Wait | None:
    """Return who has not come to where NCCL makes a communicator."""
    assert own.making is not None
    after, child, parent = own.making
    some = 0
    if parent:
        members = [member.process for _, member in sorted(job.members.get(parent, {}).items())]
        there = {
            each.number
            for each in members
            if any(one.making is not None and one.making[1:] == (child, parent) for one in each.making)
        }
    else:
        members, some = _members_of(job, own)
        there = {each.number for each in members if own.comm in each.parts or _makes(each, own.comm)}
    missing = tuple(each for each in members if each.number not in there)
    comm = parent or own.comm
    step = Step(comm, 0, Call(child, MAKING, 0, -1, after), False)
    return Wait(process, comm, step, child, missing, child, True, some) if missing else None


def _makes(process: Caller, comm: str) -> bool:
    return any(one.comm == comm for one in process.making)


def _members_of(job: Callers, own: Calls) -> tuple[list[Caller], int]:
    """Return the processes of a communicator without a parent, and 0 if it is sure which they are: ranks are in order.

    Else those that may be in it, and how many of them are besides those that came.
    """
    of_rank = {process.rank: process for process in job.processes if process.rank is not None}
    found: dict[int, int] = {}  # global ranks, by rank in the communicator
    for process in job.processes:
        for each in (*process.making, *process.parts.values()):
            if each.comm == own.comm and each.rank >= 0 and process.rank is not None:
                found[each.rank] = process.rank
    if (of_group := _of_group(job, own, found)) is not None:
        return [of_rank[rank] for rank in of_group if rank in of_rank], 0
    places = [-1, *sorted(found), own.size]
    globals_ = [-1, *(found[place] for place in sorted(found)), max(of_rank, default=-1) + 1]
    may_be, some, is_sure = [*found.values()], own.size - len(found), True
    for place, next_place, rank, next_rank in zip(places, places[1:], globals_, globals_[1:], strict=False):
        wanted = next_place - place - 1
        if wanted:
            may_be += range(rank + 1, next_rank)
            is_sure = is_sure and next_rank - rank - 1 == wanted
    return [of_rank[rank] for rank in sorted(may_be) if rank in of_rank], 0 if is_sure else some


def _of_group(job: Callers, own: Calls, found: Mapping[int, int]) -> list[int] | None:
    """Return the ranks of the only group of these processes that it may be of; one of two ranks may be of any group."""
    told = {
        tuple(ranks)
        for each in job.processes
        if each.rank in found.values()
        for ranks, is_nccl in each.groups
        if is_nccl
    }
    fits = [
        ranks
        for ranks in told
        if len(ranks) == own.size and all(ranks[place] == rank for place, rank in found.items() if place < own.size)
    ]
    return list(fits[0]) if len(fits) == 1 and own.size > 2 else None

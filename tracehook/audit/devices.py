"""Devices that stand still behind calls that all programs made: no rank waits for another one, as far as is known.

Then all ranks ran the same kernel without end; or some device waits in a call that is too long ago to be remembered.
"""

from __future__ import annotations

from tracehook.audit.called import Caller, Callers, Step
from tracehook.audit.finding import UNDECIDED
from tracehook.audit.semaphores import named
from tracehook.audit.words import since, told_call

_STILL_NS = 5_000_000_000


def stopped(job: Callers) -> tuple[list[tuple[Caller, Step]], str] | None:
    """Return each process with the first call to which its device has not come, and who stands where.

    None, unless that is so of all processes that had not come to their end.
    """
    found = []
    for process in job.processes:
        if process.ended or process.how or not process.parts:
            continue
        step = next((each for each in process.in_order if each.call.is_ahead or each.call.is_far_ahead), None)
        stands = process.number in (job.standing or ()) or process.is_far_behind
        if step is None or not stands or _still_ns(process) < _STILL_NS:
            return None
        found.append((process, step))
    return (found, _told(job, found)) if found else None


def _still_ns(process: Caller) -> int:
    if process.moved_ns is None or process.ended_ns is None:
        return 0
    return process.ended_ns - process.moved_ns


def _told(job: Callers, found: list[tuple[Caller, Step]]) -> str:
    processes = [process for process, _ in found]
    first, step = found[0]
    is_one, is_known = len(found) == 1, not any(process.is_far_behind for process in processes)
    is_alike = is_known and len({(each.comm, each.call.number, each.is_transfer) for _, each in found}) == 1
    if is_alike:
        devices = "its device has" if is_one else "their devices have"
        told = f"{named(processes)} made the {told_call(job, step)}, but {devices} not come to it"
    else:
        whose = f"device of {named(processes)} stands" if is_one else f"devices of {named(processes)} stand"
        told = f"the {whose} behind calls that were made{'' if is_known else ', too many to know where'}"
    before = f"something that the program gave to {'the device' if is_one else 'the devices'} before does not end"
    doubt = "" if is_one or is_alike else f"; {UNDECIDED}"
    return f"{told}{since(first)}: {before}{doubt}"

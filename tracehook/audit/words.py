"""What findings about waits say in words: which call, for whom, since when."""

from __future__ import annotations

from tracehook.audit import semaphores
from tracehook.audit.called import HOST, MADE, Caller, Callers, Step, Wait
from tracehook.audit.semaphores import named
from tracehook.log.text import ordinal

_SECOND = 1_000_000_000


def told_wait(job: Callers, wait: Wait) -> str:
    """Say who waits for whom, and in which call."""
    if wait.step.is_semaphore:
        return f"{wait.process.name} waits in {semaphores.told(wait)}"
    return f"{wait.process.name} waits for {whom(wait)} in the {told_call(job, wait.step)}"


def whom(wait: Wait) -> str:
    """Name those who have not come."""
    of_these = f"{wait.some} of " if wait.some else ""
    return f"{of_these}{named(wait.missing)}"


def told_call(job: Callers, step: Step) -> str:
    """Return words such as ``12th call of group tp_1 (...), all_reduce of 1,024 float32, sum``."""
    if step.kind == HOST:
        return step.function + (
            f" for {job.group(step.comm)}" if step.comm else " of torch.distributed, outside of NCCL"
        )
    if step.kind == MADE:
        return f"making of a communicator by NCCL, for {job.group(step.comm)}"
    return f"{ordinal(step.call.number + 1)} call of {job.group(step.comm)}, {job.described(step.comm, step.call)}"


def is_same_call(one: Wait, other: Wait) -> bool:
    """Whether two waits are in one call, so that one sentence can tell of both."""
    if one.step.is_transfer and one.process is not other.process:
        return False
    is_alike = (one.step.kind, one.step.function) == (other.step.kind, other.step.function)
    return is_alike and (one.comm, one.number) == (other.comm, other.number)


def kind(wait: Wait) -> str:
    """Return what a number of calls of that kind is called."""
    if not wait.step.is_transfer:
        return "calls" if wait.made != 1 else "call"
    other = "receive" if wait.step.call.operation == "send" else "send"
    return f"{other}{'s' if wait.made != 1 else ''} with {wait.process.name}"


def since(process: Caller) -> str:
    """Say for how long a process made no call; nothing if that is not known."""
    if process.moved_ns is None or process.ended_ns is None or process.ended_ns < process.moved_ns:
        return ""
    how = "until it ended" if process.ended or process.how or process.signal else "until it was last seen"
    return f", for {(process.ended_ns - process.moved_ns) / _SECOND:.1f} s {'so far' if process.runs else how}"

"""NCCL gives its own memory of a group back while the program sleeps: ``tracehook.pause`` and ``resume``.

The ranks agree before, because NCCL itself waits for all of them without a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracehook import _core
from tracehook._core import Communicator
from tracehook.errors import RegistrationError
from tracehook.log.stderr import say_once
from tracehook.symmetric_memory.windows import GroupWindows, in_order
from tracehook.versions import nccl_name

Trim = Callable[[Sequence[GroupWindows]], int]


def pause(chosen: Sequence[GroupWindows], trim: Trim) -> int:
    """See :func:`tracehook.pause`; `trim` gives back what no tensor uses, and returns how many bytes."""
    awake = [(found, one) for found in in_order(chosen) if (one := _met(found, "pause")) and not one.suspended]
    gave_back = trim([found for found, _ in awake])
    if awake and not _core.can_suspend():
        say_once(
            f"NCCL {nccl_name(_core.nccl_version())} cannot suspend communicators (2.29.7 is the first): "
            "tracehook.pause gives back only memory that no tensor uses"
        )
        return gave_back
    for found, communicator in awake:
        result, released = communicator.suspend()
        gave_back += 0 if result else released
        if result:
            say_once(
                f"{found.about} keeps NCCL's memory: ncclCommSuspend said error {result}. NCCL suspends no "
                "communicator that shares resources with another one (splitShare), and none with "
                "NCCL_DISABLE_MEM_MANAGER=1"
            )
    return gave_back


def resume(chosen: Sequence[GroupWindows]) -> int:
    """See :func:`tracehook.resume`."""
    asleep = [(found, one) for found in in_order(chosen) if (one := _met(found, "resume")) and one.suspended]
    for found, communicator in asleep:
        if result := communicator.resume():
            raise RegistrationError(
                f"{found.about} stays suspended: ncclCommResume said error {result}",
                advice="Give memory of the device back, so that NCCL gets its own again, or make a new group",
            )
    return len(asleep)


def _met(found: GroupWindows, what: str) -> Communicator | None:
    """Return the communicator when all ranks have come to this; None if there is none yet."""
    communicator = found.communicator()
    if communicator is None:
        return None
    found.meet(communicator, what, ["suspended" if communicator.suspended else "awake"])
    return communicator

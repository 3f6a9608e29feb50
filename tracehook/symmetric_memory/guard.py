"""Windows that others register: the ranks compare them before NCCL is called.

cpp/bindings/window_guard.cpp starts a thread that calls `register`. The program's thread, which registers the window,
waits. Where a call with a configuration needs no window, its own thread calls `introduce` before the ranks compare it.
"""

from __future__ import annotations

from tracehook._core import Communicator
from tracehook.log.stderr import say_once
from tracehook.symmetric_memory import state
from tracehook.symmetric_memory.ranks_follower import REGISTER_OTHER
from tracehook.symmetric_memory.windows import GroupWindows, Make

_IN_CAPTURE = (
    "while a stream is captured, and this version of NCCL would end the capture; nothing was registered or called. "
    "Register before the capture: run the same step once outside of it, so that it finds memory with windows"
)


def register(
    communicator: Communicator, size: int, flags: int, loses_capture: bool, flights: int, make: Make
) -> tuple[str, int]:
    """Compare a window of `size` bytes between the ranks, and have NCCL make it.

    Args:
        communicator: the native one.
        size: bytes.
        flags: NCCL's flags of a window.
        loses_capture: the thread's stream is captured, and this NCCL would end the capture.
        flights: calls of this communicator in an open group of the thread that registers.
        make: makes the call; returns NCCL's answer and the window's handle: 0 if there is none, None if it comes later.

    Returns:
        why the call is refused (empty: it is not), and NCCL's answer.

    """
    found = introduce(communicator)
    if found is None:
        return "", make()[0]
    wanted, unfit = f"{size} bytes, flags {flags}", ""
    if loses_capture:
        wanted, unfit = f"{wanted}, during a capture", f"all ranks want to {REGISTER_OTHER} ({wanted}) {_IN_CAPTURE}"
    why, result = found.register_of_others(wanted, flights, make, unfit)
    if why:
        say_once(why.removeprefix("tracehook: "))  # torch's own error for a window does not have it
    return why, result


def introduce(communicator: Communicator) -> GroupWindows | None:
    """Return the windows of a communicator, through which its ranks compare; None if they cannot."""
    memory = state.memory()
    found = memory.windows_of(communicator) if memory is not None else None
    if found is None and memory is not None:
        say_once(
            f"communicator {communicator.key:016x}: its ranks cannot compare what they do, because they have no store: "
            "call torch.distributed.init_process_group, or tracehook.use_store(store), before"
        )
    return found

"""What the log says on stderr: warnings, one line each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def warn(text: str) -> None:
    """Say one line on stderr. Never raises: stderr may be closed, or an object of the program's."""
    if sys.stderr is None:
        return
    try:
        # One write with the end of the line: print() makes two where stderr is unbuffered, and ranks share a terminal.
        sys.stderr.write(f"tracehook: {text}\n")
        sys.stderr.flush()
    except Exception:
        return


_MOST_SAID = 1000
_said: dict[str, object] = {}


def say_once(text: str, about: str = "") -> bool:
    """Say one line on stderr, the first time in this process, of whatever it is. Return whether it was."""
    mine = object()
    is_first = len(_said) < _MOST_SAID and _said.setdefault(text, mine) is mine  # one step: threads may say it at once
    if is_first:
        warn(f"{text} {about}".rstrip())
    return is_first


# What stderr says of an event, with its fields. It speaks of `deregister.local` only where NCCL refused it.
_WORDS = {
    "communicator.failed": "registering segment {addr} with communicator {comm} failed with NCCL error {error}; its "
    "{registrations} registrations were undone, it runs on unregistered. The other ranks still have theirs: call "
    "tracehook.disable() on all ranks now, or start the job with SYMM_REGISTER_HOOK=0, because with NVLS NCCL waits "
    "without end for ranks that differ",
    "deregister.local": "deregistering {addr} from communicator {comm} failed: NCCL error {error}",
    "deregister.stalled": "freeing segment {addr} waits for a call into NCCL on communicator {comm} that has not come "
    "back (thread {thread} waits)",
    "register.stalled": "registering a window on segment {addr} with communicator {comm} (this is its rank "
    "{comm_rank}) has not come back after {seconds:.0f} s: NCCL waits for another rank, and will not stop",
    "register.unused": "NCCL does not use what tracehook registers with communicator {comm}: it did not use segment "
    "{addr} in a call that could; NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=REG says why",
    "register.foreign": "a call on communicator {comm} has a buffer at {addr} that tracehook cannot register (an "
    "expandable segment, or memory of another allocator): if the buffers of other ranks are registered, NCCL waits for "
    "ever or hands over wrong data. Use torch's memory on all ranks, without expandable segments, or "
    "SYMM_REGISTER_MEMORY=torch",
    "segment.captured": "segment {addr} loses its memory (a sleep mode) while a CUDA graph lives that captured a call "
    "with it on communicator {comm}, and NCCL has registered it itself: the graph will read and write the old memory, "
    "or it does not come back. Set NCCL_GRAPH_REGISTER=0 before the start",
    "communicator.graphs": "communicator {comm} is being ended while {graphs} CUDA graph(s) with its collectives live, "
    "and NCCL waits for them without end: release graphs first (graph.reset())",
    "segment.unknown": "segment {addr} was freed or replaced, but was not known: please report this",
    "ledger.difference": "segment {addr} is only in the {only_in}: please report this",
}


def words_of(name: str, fields: Mapping[str, Any]) -> str:
    """Return what stderr says of an event, which is a warning; nothing of most events."""
    if name not in _WORDS or (name == "deregister.local" and fields["ok"]):
        return ""
    return _WORDS[name].format_map({"addr": None, "comm_rank": "?", **fields, "seconds": fields.get("us", 0) / 1e6})

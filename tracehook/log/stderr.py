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


def words_of(name: str, fields: Mapping[str, Any]) -> str:
    """Return what stderr says of an event, which is a warning; nothing of most events."""
    if name == "communicator.failed":
        return (
            f"registering segment {fields.get('addr')} with communicator {fields['comm']} failed with NCCL error "
            f"{fields['error']}; its {fields['registrations']} registrations were undone, it runs on unregistered. "
            "The other ranks still have theirs: call tracehook.disable() on all ranks now, or start the job with "
            "SYMM_REGISTER_HOOK=0, because with NVLS NCCL waits without end for ranks that differ"
        )
    if name == "deregister.local" and not fields["ok"]:
        address, comm = fields.get("addr"), fields["comm"]
        return f"deregistering {address} from communicator {comm} failed: NCCL error {fields['error']}"
    if name == "deregister.stalled":
        return (
            f"freeing segment {fields.get('addr')} waits for a call into NCCL on communicator {fields['comm']} "
            f"that has not come back (thread {fields['thread']} waits)"
        )
    if name == "register.stalled":
        return (
            f"registering a window on segment {fields.get('addr')} with communicator {fields['comm']} (this is its "
            f"rank {fields.get('comm_rank', '?')}) has not come back after {fields.get('us', 0) / 1e6:.0f} s: NCCL "
            "waits for another rank, and will not stop"
        )
    if name == "register.unused":
        return (
            f"NCCL does not use what tracehook registers with communicator {fields['comm']}: it did not use segment "
            f"{fields.get('addr')} in a call that could; NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=REG says why"
        )
    if name == "register.foreign":
        return (
            f"a call on communicator {fields['comm']} has a buffer at {fields.get('addr')} that tracehook cannot "
            "register (an expandable segment, or memory of another allocator): if the buffers of other ranks are "
            "registered, NCCL waits for ever or hands over wrong data. Use torch's memory on all ranks, without "
            "expandable segments, or SYMM_REGISTER_MEMORY=torch"
        )
    if name == "segment.captured":
        return (
            f"segment {fields.get('addr')} loses its memory (a sleep mode) while a CUDA graph lives that captured a "
            f"call with it on communicator {fields['comm']}, and NCCL has registered it itself: the graph will read "
            "and write the old memory, or it does not come back. Set NCCL_GRAPH_REGISTER=0 before the start"
        )
    if name == "communicator.graphs":
        return (
            f"communicator {fields['comm']} is being ended while {fields['graphs']} CUDA graph(s) with its "
            "collectives live, and NCCL waits for them without end: release graphs first (graph.reset())"
        )
    if name == "segment.unknown":
        return f"segment {fields.get('addr')} was freed or replaced, but was not known: please report this"
    if name == "ledger.difference":
        return f"segment {fields.get('addr')} is only in the {fields['only_in']}: please report this"
    return ""

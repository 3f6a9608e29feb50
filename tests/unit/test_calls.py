"""The table of interposed calls is complete: torch calls nothing of NCCL that nobody has thought about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.elf import imported

import tracehook

# What torch calls past tracehook, and why it may.
PASSED_BY = {
    "ncclCommCount": "asks for a number",
    "ncclCommUserRank": "asks for a number",
    "ncclCommCuDevice": "asks for a number",
    "ncclGetErrorString": "asks for a text",
    "ncclGetUniqueId": "makes no communicator yet",
    "ncclCommGetUniqueId": "makes no communicator yet",
    "ncclGetVersion": "asks for a number",
    "ncclMemAlloc": "memory of its own, which the allocator's events name where it gets into a pool",
    "ncclMemFree": "the same memory",
    "ncclDevCommCreate": "for kernels of the program's own, on windows of its own",
    "ncclDevCommDestroy": "the same",
    "ncclPutSignal": "on windows of the program's own, made with ncclCommWindowRegister",
    "ncclSignal": "the same",
    "ncclWaitSignal": "the same",
}


def interposed() -> set[str]:
    """Return the calls that have a wrapper."""
    native = Path(tracehook.__file__).parent / "cpp" / "nccl"
    table = (native / "calls.def").read_text()
    named = set(re.findall(r"^(?:GUARDED|PLACED|LIFECYCLE)\((nccl\w+)", table, re.MULTILINE))
    return named | {"ncclGetLastError"}  # which stands beside the table


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch calls no NCCL")
def test_every_call_of_torch_is_interposed_or_passed_by_for_a_reason() -> None:
    """A call without a wrapper may end a group or a communicator unseen, so each needs a reason."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    calls = {name for name in imported(library) if name.startswith("nccl")}
    assert len(calls) > 20
    assert calls - interposed() - PASSED_BY.keys() == set()
    assert interposed() & PASSED_BY.keys() == set()

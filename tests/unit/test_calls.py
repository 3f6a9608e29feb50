"""The table of interposed calls is complete: NCCL exports nothing, and torch calls nothing, that has no answer here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.elf import exported, imported

import tracehook

HERE = Path(__file__).parent
# What may be called past tracehook, and why.
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
    "ncclCommMemStats": "asks for numbers",
    "ncclCommQueryProperties": "asks for numbers",
    "ncclResetDebugInit": "about NCCL's own log",
    "ncclResetDebugInitInternal": "the same",
    "ncclSetEncryption": "about NCCL's own connections, before there is a communicator",
    "ncclWinGetUserPtr": "asks for the address below a window",
}
# The same, by how names begin.
FAMILIES = {
    "ncclGet": "asks for addresses and endpoints of a window's peers",
    "ncclParam": "NCCL's settings, by name",
    "ncclTeam": "asks for numbers of ranks",
    "ncclGin": "describes what a device communicator shall have",
    "ncclLLA2A": "the same",
    "ncclLsaBarrier": "the same",
}


def interposed() -> set[str]:
    """Return the calls that have a wrapper."""
    native = Path(tracehook.__file__).parent / "cpp" / "nccl"
    table = (native / "calls.def").read_text()
    named = set(re.findall(r"^(?:GUARDED|COUNTED|TRANSFER|PLACED|LIFECYCLE)\((nccl\w+)", table, re.MULTILINE))
    return named | {"ncclGetLastError"}  # which stands beside the table


def passed_by(name: str) -> bool:
    """Whether there is a reason to let this call pass tracehook by."""
    return name in PASSED_BY or name.startswith(tuple(FAMILIES))


def listed() -> dict[str, set[str]]:
    """Return what each version of NCCL exports that earlier ones did not."""
    lines = (HERE / "nccl_exports.txt").read_text().splitlines()
    return {version: set(names.split()) for version, _, names in (line.partition(":") for line in lines[1:])}


@pytest.mark.parametrize("version", listed())
def test_every_export_of_nccl_is_interposed_or_passed_by_for_a_reason(version: str) -> None:
    """Anybody may call it: servers, bindings, extensions."""
    unknown = {name for name in listed()[version] - interposed() if not passed_by(name)}
    assert unknown == set()


def test_the_table_names_only_what_nccl_exports() -> None:
    """A name that no version has is a slip of the pen; what is interposed is not passed by, too."""
    assert interposed() <= set().union(*listed().values())
    assert {name for name in interposed() if name in PASSED_BY} == set()


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch brings no NCCL")
def test_the_list_of_exports_has_those_of_the_nccl_that_is_here() -> None:
    """A new version of NCCL makes this fail: then the list gets a line, and each new name an answer."""
    (library,) = (Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "lib").glob("libnccl.so*")
    here = {name for name in exported(library) if name.startswith("nccl")}
    assert len(here) > 30
    assert here - set().union(*listed().values()) == set()


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch calls no NCCL")
def test_every_call_of_torch_is_interposed_or_passed_by_for_a_reason() -> None:
    """A call without a wrapper may end a group or a communicator unseen, so each needs a reason."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    calls = {name for name in imported(library) if name.startswith("nccl")}
    assert len(calls) > 20
    assert {name for name in calls - interposed() if not passed_by(name)} == set()

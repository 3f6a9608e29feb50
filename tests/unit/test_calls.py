"""The table of interposed calls is complete: NCCL exports nothing, and torch calls nothing, that has no answer here."""

import re
from pathlib import Path

import pytest
import torch
from support import nccl_known
from support.elf import exported, imported


def unanswered(names: set[str]) -> set[str]:
    """Return the calls that have no wrapper, and no reason to do without."""
    return {name for name in names - nccl_known.interposed() if nccl_known.why_passed_by(name) is None}


@pytest.mark.parametrize("version", nccl_known.exports())
def test_every_export_of_nccl_is_interposed_or_passed_by_for_a_reason(version: str) -> None:
    """Anybody may call it: servers, bindings, extensions."""
    assert unanswered(nccl_known.exports()[version]) == set()


def test_the_table_names_only_what_nccl_exports() -> None:
    """A name that no version has is a slip of the pen; what is interposed is not passed by, too."""
    interposed = nccl_known.interposed()
    assert interposed <= set().union(*nccl_known.exports().values())
    assert {name for name in interposed if name in nccl_known.PASSED_BY} == set()


def test_the_table_has_the_arguments_that_nccl_declares() -> None:
    """As tests/unit/nccl_header.txt has them, which is from NCCL's headers. The last version decides."""
    declared = nccl_known.latest()
    rows = nccl_known.rows()
    assert len(rows) > 40
    assert {name: nccl_known.arguments(declared[name]) for name in rows} == rows


def body(name: str) -> str:
    """Return what abi.h has between the braces of an enumeration or a structure, without comments."""
    found = re.search(rf"^(?:enum|struct) {name}\b[^{{]*{{(.*?)}};", nccl_known.abi(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.sub(r"//.*", "", found[1])


def kind(type_: str) -> str:
    """Return how many bytes a type has, in words: abi.h need not call it as NCCL does."""
    return "pointer" if "*" in type_ or type_.startswith("cudaEvent_t") else type_.replace("std::", "")


@pytest.mark.parametrize(
    ("ours", "theirs"), [("Result", "ncclResult_t"), ("DataType", "ncclDataType_t"), ("RedOp", "ncclRedOp_t")]
)
def test_every_value_of_nccl_has_a_name_here(ours: str, theirs: str) -> None:
    """A new type of data has a size, and a new result a text."""
    declared = {name: text for name, text in nccl_known.latest().items() if name.startswith(f"{theirs}.")}
    values = {int(text) for name, text in declared.items() if ".ncclNum" not in name and text.isdecimal()}
    assert len(values) > 4
    assert {int(number) for number in re.findall(r"k\w+ = (\d+)", body(ours))} >= values


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("Config", "ncclConfig_t"), ("CollConfig", "ncclCollConfig_t"), ("Simulation", "ncclSimInfo_t")],
)
def test_a_structure_of_nccl_has_the_same_members_here(ours: str, theirs: str) -> None:
    """Up to the last that tracehook reads; a call's configuration is whole, because the ranks compare it."""
    here = [kind(line.rpartition(" ")[0].strip()) for line in body(ours).split(";") if line.strip()]
    members = [text for name, text in nccl_known.latest().items() if name.startswith(f"{theirs}[")]
    there = [kind(member.rpartition(" ")[0]) for member in members]
    assert len(here) > 3
    assert here == (there[: len(here)] if ours == "Config" else there)


def test_the_emulated_nccl_has_every_call_of_the_table() -> None:
    """Otherwise no rehearsal would show what tracehook does about it."""
    assert nccl_known.interposed() - nccl_known.emulated() == set()


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch brings no NCCL")
def test_the_list_of_exports_has_those_of_the_nccl_that_is_here() -> None:
    """A new version of NCCL makes this fail: then the list gets a line, and each new name an answer."""
    (library,) = (Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "lib").glob("libnccl.so*")
    here = {name for name in exported(library) if name.startswith("nccl")}
    assert len(here) > 30
    assert here - set().union(*nccl_known.exports().values()) == set()


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch calls no NCCL")
def test_every_call_of_torch_is_interposed_or_passed_by_for_a_reason() -> None:
    """A call without a wrapper may end a group or a communicator unseen, so each needs a reason."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    calls = {name for name in imported(library) if name.startswith("nccl")}
    assert len(calls) > 20
    assert unanswered(calls) == set()

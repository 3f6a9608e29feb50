"""Memory between processes in a rehearsal, as CUDA 13 has it: exported handles, and cudaIpcOpenMemHandle."""

from __future__ import annotations

from typing import Any

import pytest
from support.rehearsal import RULES_BROKEN, rehearse

MB = 1 << 20
INVALID_VALUE, NOT_INITIALIZED, INVALID_DEVICE, INVALID_HANDLE, NOT_SUPPORTED = 1, 3, 101, 400, 801
INVALID_ARGUMENT, VERSION_MISMATCH = 2, 25  # what NVML says
UNWRITTEN = 99


def share(scene: str, *arguments: str, job: str = "shared_memory.py", devices: int = 1) -> dict[str, Any]:
    """Return what a job told that ended well."""
    run = rehearse(job, scene, *arguments, devices=devices)
    run.assert_good()
    return run.facts()


def test_memory_is_given_to_another_process() -> None:
    """An exported handle, imported and mapped elsewhere, is the same memory, of the exporter's device and size."""
    facts = share("given", devices=2)
    importer = facts["importer"]
    assert importer["seen"] == [7, 9]
    assert facts["written"] == 11
    assert importer["extent"] == [2 * MB + 4, 4 * MB]
    assert importer["looks"] == [2, 1, 2, 1], "device memory, of device 1"
    assert importer["same_handle"], "the handle of a mapping, while it is held, is the one that was mapped"
    assert importer["properties"] == [1, 1]
    assert importer["mapped_only"] == 7, "a mapping keeps the memory without a handle"
    assert importer["held"] > 0
    assert importer["left"] == []
    assert importer["stale"] == INVALID_VALUE
    assert facts["left"] == []
    assert facts["status"] == 0


def test_memory_is_given_without_a_descriptor() -> None:
    """Where a rehearsal has fabric handles, 64 bytes lead to the memory while its maker has it."""
    run = rehearse("shared_memory.py", "fabric", devices=1, env={"TRACEHOOK_EMU_FABRIC": "1"})
    run.assert_good()
    facts = run.facts()
    assert facts["importer"] == {"seen": 7, "types": 8, "stale": INVALID_VALUE, "kept": 9}
    assert (facts["written"], facts["status"]) == (9, 0)
    assert (facts["descriptor"], facts["both"]) == (INVALID_VALUE, [0, 0]), "as what it was made for"
    assert facts["foreign"] == INVALID_VALUE


@pytest.mark.parametrize(("fabric", "state"), [("0", 0), ("1", 3)], ids=["none", "one"])
def test_nvml_says_whether_there_is_a_fabric(fabric: str, state: int) -> None:
    """It answers with success and a state (3: ready), as an H100 does; it refuses an unknown version or device."""
    run = rehearse("fabric_info.py", env={"TRACEHOOK_EMU_FABRIC": fabric})
    run.assert_good()
    assert run.facts() == {
        "second": [0, state],
        "third": [0, state],
        "other": [[VERSION_MISMATCH, UNWRITTEN]] * 3,
        "no_device": [INVALID_ARGUMENT, UNWRITTEN],
    }


def test_memory_is_fetched_from_another_process() -> None:
    """A descriptor taken with pidfd_getfd, as PyTorch does, is as good as one that was sent."""
    facts = share("fetched")
    assert facts["seen"] == 5
    assert facts["status"] == 0


def test_a_device_may_have_another_number_elsewhere() -> None:
    """Imported memory is of the same device by its number in the importer; without that device there is no import."""
    facts = share("elsewhere", devices=2)
    assert facts["looks"] == [2, 0, 2, 0], "the exporter's device 1 is the importer's device 0"
    assert facts["invisible"] == INVALID_DEVICE
    assert facts["status"] == 0


def test_memory_of_nccl_is_shared() -> None:
    """Memory of ncclMemAlloc has a handle of whole granules; what another process maps outlives its being freed."""
    facts = share("of_nccl")
    assert facts["extent"] == [5, 4 * MB]
    assert facts["seen"] == [6, 6]
    assert facts["reused"], "the address is used again at once"
    assert facts["fresh"] == 0
    assert facts["used"] == [4 * MB, 4 * MB]


def test_memory_outlives_an_exporter_that_is_killed() -> None:
    """After SIGKILL of the exporter the importer reads and writes on; nothing is left when it lets go."""
    facts = share("exporter_killed")
    assert facts["status"] == -9
    assert facts["seen"] == [8, 9]
    assert facts["left"] == []


def test_an_importer_that_is_killed_leaves_nothing() -> None:
    """After SIGKILL of the importer the exporter's memory is as it was, and can be given back."""
    facts = share("importer_killed")
    assert facts["status"] == -9
    assert facts["seen"] == 4
    assert facts["left"] == []
    assert facts["used"] == 0


def test_memory_is_imported_where_it_was_made() -> None:
    """A process may import its own memory, which then has two addresses; an exported descriptor ends at exec."""
    facts = share("inside", job="memory_handles.py")
    assert facts == {"seen": 3, "different": True, "cloexec": True}


def test_what_cannot_be_shared_is_refused() -> None:
    """Memory without a handle type, foreign descriptors, stale handles and absent fabric handles are errors."""
    facts = share("refused", job="memory_handles.py")
    assert facts["plain"] == facts["retained_plain"] == facts["cuda_malloc"] == INVALID_VALUE
    assert facts["kinds"] == [NOT_SUPPORTED, INVALID_VALUE, NOT_SUPPORTED]
    assert facts["foreign"] == [INVALID_VALUE] * 5
    assert facts["import_kinds"] == [0, NOT_SUPPORTED, INVALID_VALUE]
    assert facts["stale"] == [0, INVALID_VALUE, INVALID_VALUE]
    assert facts["taken_twice"] == INVALID_VALUE
    assert facts["unmapped"] == INVALID_VALUE


def test_access_is_what_was_allowed() -> None:
    """Writing to a mapping that may be read, and reading one that nobody allowed, is a crash."""
    assert share("accesses", job="memory_handles.py") == {"read": [0, True], "none": [0, True]}


def test_devices_reach_each_other() -> None:
    """Peer access is possible between any two devices and enabled once, and memory is copied between them."""
    facts = share("peers", job="memory_handles.py", devices=2)
    assert facts["can"] == [[0, 1], [1, 0]]
    assert facts["enabled"] == [0, 704, 101]
    assert facts["copied"] == 5


def test_a_forked_child_has_nothing_of_it() -> None:
    """Children forked while other threads make memory have no CUDA, and no mappings and descriptors but their own."""
    facts = share("forked")
    assert facts["heard"] == [[NOT_INITIALIZED, [], 0]] * 20
    assert facts["ends"] == [0] * 20
    assert facts["seen"] == 2


def test_handles_are_not_limited_by_descriptors() -> None:
    """A process that may open 64 files makes 200 handles."""
    facts = share("many", job="memory_handles.py")
    assert facts["used"] == 2 * MB
    assert facts["left"] == 2, "a mapping and what the handle holds"


@pytest.mark.parametrize("kind", ["plain", "expandable", "pool"])
def test_tensors_are_shared(kind: str) -> None:
    """A tensor of PyTorch's allocator, of an expandable segment or of a pool of NCCL's memory is copied from and to."""
    facts = share(kind, job="shared_by_torch.py", devices=2)
    assert facts["importer"] == [["cuda:1", [5.0], True], []]
    assert facts["into"] == 0, "the first tensor lies at the beginning"
    assert facts["written"] == [6.0]
    assert facts["status"] == 0


def test_a_handle_is_opened_twice() -> None:
    """The second opening gives the same address; the memory is mapped until it was closed as often."""
    facts = share("twice", job="opened_memory.py")
    importer = facts["importer"]
    assert importer["same"]
    assert importer["apart"]
    assert importer["seen"] == [1, 5, 5]
    assert importer["closed"] == [0, 0, INVALID_VALUE, 0, 0]
    assert importer["free"] == INVALID_VALUE, "an importer cannot free it"
    assert importer["left"] == 1, "what was opened to be freed"
    assert facts["interior"], "an address inside has the handle of the whole"
    assert facts["written"] == 5
    assert facts["own"] == 201, "a process does not open its own memory"


def test_a_stale_handle_is_refused() -> None:
    """The handle of memory that was freed is an error, also when the address is used again; so is a dead exporter's."""
    facts = share("stale", job="opened_memory.py")
    assert facts["reused"]
    assert facts["stale"] == [INVALID_HANDLE] * 3
    assert facts["renewed"] == 0
    assert facts["dead"] == 205


def test_only_memory_of_cuda_malloc_has_such_a_handle() -> None:
    """Memory of ncclMemAlloc and of cuMemCreate has none, as on devices, and neither has host memory."""
    facts = share("refused", job="opened_memory.py")
    assert facts["refused"] == [INVALID_VALUE] * 3
    assert facts["capable"] == [False, False, True], "as the attribute of the pointer says"


@pytest.mark.parametrize("how", ["open", "stopped"])
def test_freeing_what_another_process_has_open_breaks_a_rule(how: str) -> None:
    """Freeing memory that a process has open, also one that is stopped, is named, with the memory and the process."""
    run = rehearse("opened_memory.py", "freeing", how)
    assert run.status == RULES_BROKEN, run.output
    assert run.broken == ["I1"], run.output
    facts = run.facts()
    assert facts["status"] == 0, "as on a device, the call succeeds"
    [line] = run.finished.lines("rule I1 broken")
    assert facts["memory"] in line
    assert f"process {facts['pid']} has it open" in line


@pytest.mark.parametrize("how", ["closed", "killed", "forked"])
def test_freeing_what_nobody_has_open_breaks_none(how: str) -> None:
    """It may be freed once it was closed, or its user killed, although a child of the user lives on."""
    assert share("freeing", how, job="opened_memory.py")["status"] == 0

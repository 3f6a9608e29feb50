"""Memory between processes in a rehearsal, as CUDA 13 has it: exported handles, and cudaIpcOpenMemHandle."""

from typing import Any, NamedTuple

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
    run = rehearse("nvml.py", "fabric", env={"TRACEHOOK_EMU_FABRIC": fabric})
    run.assert_good()
    assert run.facts() == {
        "second": [0, state],
        "third": [0, state],
        "other": [[VERSION_MISMATCH, UNWRITTEN]] * 3,
        "no_device": [INVALID_ARGUMENT, UNWRITTEN],
    }


class Scene(NamedTuple):
    """A sentence, the job and its scene, what it tells, and on how many devices."""

    sentence: str
    job: str
    name: str
    facts: dict[str, Any]
    devices: int = 1


SHARED, HANDLES, OPENED = "shared_memory.py", "memory_handles.py", "opened_memory.py"
SCENES = (
    Scene("A descriptor taken with pidfd_getfd, as PyTorch does, is as good as one that was sent.",
          SHARED, "fetched", {"seen": 5, "status": 0}),
    Scene("Imported memory is of the same device by its number in the importer; without that device there is none.",
          SHARED, "elsewhere", {"looks": [2, 0, 2, 0], "invisible": INVALID_DEVICE, "status": 0}, devices=2),
    Scene("Memory of ncclMemAlloc has a handle of whole granules; what another process maps outlives its being freed. "
          "The address is used again at once.",
          SHARED, "of_nccl",
          {"extent": [5, 4 * MB], "seen": [6, 6], "reused": True, "fresh": 0, "used": [4 * MB, 4 * MB]}),
    Scene("After SIGKILL of the exporter the importer reads and writes on; nothing is left when it lets go.",
          SHARED, "exporter_killed", {"status": -9, "seen": [8, 9], "left": []}),
    Scene("After SIGKILL of the importer the exporter's memory is as it was, and can be given back.",
          SHARED, "importer_killed", {"status": -9, "seen": 4, "left": [], "used": 0}),
    Scene("Children forked while threads make memory have no CUDA, and no mappings and descriptors but their own.",
          SHARED, "forked", {"heard": [[NOT_INITIALIZED, [], 0]] * 20, "ends": [0] * 20, "seen": 2}),
    Scene("A process may import its own memory, which then has two addresses; an exported descriptor ends at exec.",
          HANDLES, "inside", {"seen": 3, "different": True, "cloexec": True}),
    Scene("Memory without a handle type, foreign descriptors, stale handles and absent fabric handles are errors.",
          HANDLES, "refused",
          {**dict.fromkeys(("plain", "retained_plain", "cuda_malloc", "taken_twice", "unmapped"), INVALID_VALUE),
           "kinds": [NOT_SUPPORTED, INVALID_VALUE, NOT_SUPPORTED], "foreign": [INVALID_VALUE] * 5,
           "import_kinds": [0, NOT_SUPPORTED, INVALID_VALUE], "stale": [0, INVALID_VALUE, INVALID_VALUE]}),
    Scene("Writing to a mapping that may be read, and reading one that nobody allowed, is a crash.",
          HANDLES, "accesses", {"read": [0, True], "none": [0, True]}),
    Scene("Peer access is possible between any two devices and enabled once, and memory is copied between them.",
          HANDLES, "peers", {"can": [[0, 1], [1, 0]], "enabled": [0, 704, 101], "copied": 5}, devices=2),
    Scene("A process that may open 64 files makes 200 handles; a mapping, and what the handle holds, are left.",
          HANDLES, "many", {"used": 2 * MB, "left": 2}),
    *(Scene("A tensor of PyTorch's allocator, of an expandable segment or of a pool of NCCL's memory is copied from "
            "and to. The first tensor lies at the beginning.",
            "shared_by_torch.py", kind,
            {"importer": [["cuda:1", [5.0], True], []], "into": 0, "written": [6.0], "status": 0}, devices=2)
      for kind in ("plain", "expandable", "pool")),
    Scene("The handle of freed memory is an error, also when the address is used again; so is a dead exporter's.",
          OPENED, "stale", {"reused": True, "stale": [INVALID_HANDLE] * 3, "renewed": 0, "dead": 205}),
    Scene("Only cudaMalloc gives such memory, as the attribute of the pointer says; host memory has no handle either.",
          OPENED, "refused", {"refused": [INVALID_VALUE] * 3, "capable": [False, False, True]}),
    *(Scene("Memory may be freed once it was closed, or its user killed, although a child of the user lives on.",
            OPENED, f"freeing {how}", {"status": 0}) for how in ("closed", "killed", "forked")),
)  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.job.removesuffix('.py')}-{scene.name}")
def test_a_scene(scene: Scene) -> None:
    """As the sentence of the scene says: no rule is broken, and the job tells what it has."""
    facts = share(*scene.name.split(), job=scene.job, devices=scene.devices)
    assert {name: facts.get(name) for name in scene.facts} == scene.facts, scene.sentence


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

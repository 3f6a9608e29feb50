"""Memory that other processes can map (SYMM_REGISTER_MEMORY=vmm): in effect, shared, freed beside calls that wait."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.processes import SCRIPTS, run

from gpu.launch import IS_NCCL2, JOBS, launch
from gpu.test_gpu_symmetric import CASES, told

VMM: dict[str, Any] = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "auto"}
PATH = os.pathsep.join(filter(None, [str(CASES), os.environ.get("PYTHONPATH", "")]))


def test_each_registration_is_used_and_the_memory_comes_back(ranks: int, tmp_path: Path) -> None:
    """Results are right, NCCL used what tracehook registered, and nothing is left."""
    result = launch(JOBS / "vmm_calls.py", ranks, tmp_path, **VMM)
    assert result.status == 0, result.output
    everybody = ",".join(str(rank + 1) for rank in range(ranks))
    for rank in range(ranks):
        assert f"rank={rank} eager={everybody},{(rank - 1) % ranks + 1}\n" in result.output, result.output
        for number in (10, 20):
            gathered = ",".join(str(other + number) for other in range(ranks))
            assert f"rank={rank} replay={gathered},{(rank - 1) % ranks + number}\n" in result.output, result.output
    assert result.values("kept") == ["0"] * ranks, result.output
    freed = {event["segment"] for event in result.events("segment.free")}
    # What a barrier needs, nccl2 keeps until its process ends.
    large = {event["segment"] for event in result.events("segment.alloc") if event["size"] >= 32 << 20}
    made = {(event["comm_id"], event["segment"]) for event in result.events("register.local")}
    used = {(event["comm_id"], event["segment"]) for event in result.events("register.used")}
    assert made, result.output
    assert large & {segment for _, segment in made} == large <= freed, (large, made, freed)
    # What nccl2 registers itself, tracehook only observes.
    assert used == (set() if IS_NCCL2 else made), (made, used)
    assert result.events("register.unused") == []
    assert [0] * ranks == [counts.local.left for counts in result.summaries]


def test_doctor_times_a_call_on_registered_memory(ranks: int, tmp_path: Path) -> None:
    """On two devices it says how much faster; on one that there is nobody to exchange with."""
    result = run([SCRIPTS / "tracehook", "doctor", "--json"], {}, cwd=tmp_path, timeout=120)
    told = json.loads(result.out)["found"]["registration"]
    wanted = r"on registered memory \d+ us: [\d.]+ times" if ranks > 1 else "one device has nobody to exchange with"
    assert re.search(wanted, told), result.output


def test_torch_shares_tensors_with_a_child(tmp_path: Path) -> None:
    """A child sees what the parent wrote, the parent what the child wrote, and a tensor goes back."""
    [facts] = told(launch(CASES / "shared_by_torch_vmm.py", 1, tmp_path, **VMM, PYTHONPATH=PATH), 1)
    assert (facts["child"], facts["parent"], facts["back"]) == ([4.0, 4.0, 1000.0], [4.0, 4.0], [5.0, 5.0])
    assert facts["source"] == "vmm"


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("memory", ["torch", "vmm"])
def test_a_free_beside_a_split_of_another_rank(tmp_path: Path, memory: str) -> None:
    """Two ranks as threads: the segment that the busy communicator holds is buried, and goes when the split is over."""
    env: dict[str, Any] = {"SYMM_REGISTER_MEMORY": memory, "SYMM_REGISTER_LOCAL": "all", "PYTHONPATH": PATH}
    result = launch(CASES / "threads_of_ranks.py", 1, tmp_path, "ncclCommSplit", **env)
    [facts] = told(result, 1)
    assert (facts["done"], facts["freed"]) == ([True, True], [[0, 0]]), result.output
    assert facts["took"][0] < 5, facts
    buried = {event["segment"] for event in result.events("segment.buried")}
    assert len(buried) == 1, result.output
    assert buried <= {event["segment"] for event in result.events("segment.free")}
    assert len(result.events("deregister.local")) == len(result.events("register.local")) > 0

"""Symmetric memory on real devices: the starred rows of docs/failure-modes.md, and NCCL's symmetric kernels."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gpu.launch import IS_NCCL2, ROOT, Result, launch

CASES = ROOT / "tests" / "rehearsal" / "jobs"
TIMEOUT = 5
REFUSED = "RuntimeError" if IS_NCCL2 else "DistBackendError"  # what torch makes of a refused call
MB = 1 << 20


def play(job: str, *arguments: str, ranks: int, log: Path, timeout: int = TIMEOUT, **env: str) -> Result:
    """Run a job of the rehearsals on real devices."""
    path = os.pathsep.join(filter(None, [str(CASES), os.environ.get("PYTHONPATH", "")]))
    return launch(
        CASES / job, ranks, log, *arguments, PYTHONPATH=path, SYMM_REGISTER_TIMEOUT=str(timeout), timeout=90, **env
    )


def told(result: Result, ranks: int) -> list[dict[str, Any]]:
    """Return the facts of each rank; the job ended well."""
    assert result.status == 0, result.output
    facts: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for rank, text in re.findall(r"fact (\d+) (\{.*\})", result.output):
        facts[int(rank)].update(json.loads(text))
    assert all(facts), result.output
    return facts


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("swapped_equal", REFUSED, ["'placement of all_reduce'", "in window 0 at", "in window 1 at"]),
        (
            "unequal_sizes",
            "RegistrationMismatch",
            [f"'a segment of {32 * MB} bytes'", f"'a segment of {64 * MB} bytes'"],
        ),
        ("missing_rank", "RegistrationTimeout", [f"did not come within the {TIMEOUT} s", "rank"]),
    ],
)
def test_what_ranks_differ_in_is_refused(ranks: int, tmp_path: Path, name: str, kind: str, texts: list[str]) -> None:
    """All ranks raise, in time, with what differs, and the communicator works afterwards."""
    result = play("symmetric_cases.py", name, "works", ranks=ranks, log=tmp_path)

    for facts in told(result, ranks):
        assert facts["error"][0] == kind, result.output
        assert all(text in facts["error"][1] for text in texts), result.output
        assert facts["seconds"] < TIMEOUT + 3, result.output
        assert facts["right"], result.output
    if name in ("unequal_sizes", "missing_rank"):
        assert result.events("register.window") == []


def test_a_capture_is_not_broken(ranks: int, tmp_path: Path) -> None:
    """A scope in a capture waits for sync, and the graph is right."""
    result = play("symmetric_cases.py", "capture", "works", ranks=ranks, log=tmp_path)

    for facts in told(result, ranks):
        assert (facts["error"], facts["sum"]) == (None, ranks * (ranks + 1) / 2)
        assert (facts["reason"], facts["synced"], facts["later"]) == ("deferred", 1, "symmetric")


def test_a_graph_replays_with_windows(ranks: int, tmp_path: Path) -> None:
    """Each replay is right, whatever is allocated, freed and trimmed between them."""
    result = play("symmetric_cases.py", "graph_replay", "works", ranks=ranks, log=tmp_path)

    whole = ranks * (ranks + 1) / 2
    for facts in told(result, ranks):
        assert (facts["reason"], facts["sums"]) == ("symmetric", [whole, 2 * whole, 3 * whole])
        assert (facts["pinned"], facts["unpinned"], facts["right"]) == (1, 0, True)


def test_expandable_segments_are_kept_out(ranks: int, tmp_path: Path) -> None:
    """With expandable segments a tensor of a scope is symmetric and right, where NCCL's windows would crash."""
    setting = "expandable_segments:True"
    result = play("symmetric_cases.py", "expandable", ranks=ranks, log=tmp_path, PYTORCH_CUDA_ALLOC_CONF=setting)

    for facts in told(result, ranks):
        assert (facts["reason"], facts["inside"]) == ("expandable_segment", True)
        assert [facts["sum"], facts["plain"]] == [ranks * (ranks + 1) / 2] * 2


def test_freed_memory_keeps_its_window(ranks: int, tmp_path: Path) -> None:
    """What torch gives back stays registered, and serves the next equal request."""
    result = play("symmetric_cases.py", "freed_while_registered", "works", ranks=ranks, log=tmp_path)

    for facts in told(result, ranks):
        assert (facts["retired"], facts["same"], facts["after"]) == (32 * MB, True, 1)
        assert (facts["sum"], facts["right"]) == (ranks * (ranks + 1) / 2, True)


def test_an_abort_with_live_windows(ranks: int, tmp_path: Path) -> None:
    """After an abort with live windows the program allocates and frees on."""
    result = play("symmetric_cases.py", "abort_with_windows", ranks=ranks, log=tmp_path)

    for facts in told(result, ranks):
        assert (facts["error"], facts["symmetric"], facts["alive"]) == (None, False, True)
    assert result.events("deregister.window") == []


@pytest.mark.parametrize("policy", ["shared", "isolated"])
def test_symmetric_kernels_run(ranks: int, tmp_path: Path, policy: str) -> None:
    """All three collectives on two groups are right, all buffers are symmetric, and NCCL runs its symmetric kernels."""
    even = ranks // 2 * 2
    result = play(
        "symmetric_groups.py", "profile", ranks=even, log=tmp_path, SYMM_REGISTER_POLICY=policy, NCCL_NVLS_ENABLE="0"
    )

    for rank, facts in enumerate(told(result, even)):
        for name, size, own in (("world", even, rank), ("pair", 2, rank % 2)):
            found = facts[name]
            assert found["symmetric"], result.output
            assert found["all_reduce"] == size * (size + 1) / 2
            assert found["all_gather"] == [1.0 + one for one in range(size)]
            assert found["reduce_scatter"] == size * 10 * own + size * (size - 1) / 2
        assert [kernel for kernel in facts["kernels"] if "ncclSymk" in kernel], facts["kernels"]
        assert set(facts["pools"]) == ({"shared"} if policy == "shared" else {"group"})


def test_a_process_with_a_past_joins_new_ones(ranks: int, tmp_path: Path) -> None:
    """Default groups of some of the processes follow each other: no rank has memory of an earlier one."""
    some = min(ranks, 3)  # the job has groups for two and for three processes
    result = play("replaced_ranks.py", ranks=some, log=tmp_path, TEST_STORE=str(tmp_path / "store"))
    for facts in told(result, some):
        assert facts["sums"] == [True] * 24

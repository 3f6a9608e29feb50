"""The libraries of sleep modes, unchanged, out of their wheels. ``make integrations`` fetches them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import ROOT, rehearse

FETCHED = ROOT / "build" / "servers"
LIBRARIES = {"torch_memory_saver": FETCHED / "torch_memory_saver", "vllm": FETCHED / "vllm" / "cumem_allocator.abi3.so"}
HERE = Path(__file__).parent
MB = 1 << 20
CYCLES = int(os.environ.get("SLEEP_CYCLES", "100"))
SHARD = int(os.environ.get("SLEEP_SHARD", "32"))  # MiB

pytestmark = pytest.mark.skipif(
    not all(file.exists() for file in LIBRARIES.values()), reason="the libraries are not here: make integrations"
)


@pytest.mark.parametrize(
    "settings", [None, {}, {"SYMM_REGISTER_MEMORY": "vmm"}, {"SYMM_REGISTER_LOCAL": "all"}], ids=str
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_memory_comes_back_and_every_collective_is_right(
    library: str, settings: dict[str, str] | None, tmp_path: Path
) -> None:
    """A shard and its gathered form sleep: their segments come back in each cycle, also without the hook (None)."""
    log = None if settings is None else tmp_path
    env = {"FETCHED": str(FETCHED), "NCCL_GRAPH_REGISTER": "0", **(settings or {})}  # as vLLM sets it
    sizes = str(CYCLES), str(SHARD)
    run = rehearse(HERE / "sleep_job.py", library, *sizes, log=log, ranks=2, env=env, timeout=240 + CYCLES)
    run.assert_good()
    for rank in range(2):
        facts = run.facts(rank)
        print(library, settings, rank, facts)
        assert facts["wrong"] == [], run.output
        assert facts["bytes"] >= 3 * SHARD * MB
        assert all(abs(each - facts["bytes"]) <= 2 * MB for each in facts["gave_back"]), run.output
        if log is not None:
            moved = facts["segments"] * CYCLES
            assert len(run.events("segment.unmap", rank)) == len(run.events("segment.map", rank)) == moved
    if log is not None:
        Audit(tmp_path).expect(CLEAN)

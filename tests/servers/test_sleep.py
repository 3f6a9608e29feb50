"""The libraries of sleep modes, unchanged, out of their wheels. ``make integrations`` fetches them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import ROOT, rehearse

FETCHED = ROOT / "build" / "servers"
LIBRARIES = {"torch_memory_saver": FETCHED / "torch_memory_saver", "vllm": FETCHED / "vllm" / "cumem_allocator.abi3.so"}
HERE = Path(__file__).parent
MB = 1 << 20

pytestmark = pytest.mark.skipif(
    not all(file.exists() for file in LIBRARIES.values()), reason="the libraries are not here: make integrations"
)


@pytest.mark.parametrize("settings", [{}, {"SYMM_REGISTER_MEMORY": "vmm"}, {"SYMM_REGISTER_LOCAL": "all"}], ids=str)
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_memory_comes_back_and_every_collective_is_right(
    library: str, settings: dict[str, str], tmp_path: Path
) -> None:
    """A shard of 32 MiB and its gathered form sleep: 96 MiB come back in each of 100 cycles, windows stay."""
    env = {"FETCHED": str(FETCHED), **settings}
    run = rehearse(HERE / "sleep_job.py", library, "100", log=tmp_path, ranks=2, env=env, timeout=240)
    run.assert_good()
    for rank in range(2):
        facts = run.facts(rank)
        assert facts["wrong"] == [], run.output
        assert facts["gave_back"] == [96 * MB], run.output
        assert len(run.events("segment.unmap", rank)) == len(run.events("segment.map", rank)) == 200
    Audit(tmp_path).expect(CLEAN)

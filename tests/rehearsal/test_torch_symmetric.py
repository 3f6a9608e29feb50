"""torch's own symmetric memory in a rehearsal: what docs/comparison.md says of it is so, with torch 2.11."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from support.rehearsal import RULES_BROKEN, rehearse

pytestmark = pytest.mark.skipif(
    not metadata.version("torch").startswith("2.11."), reason="docs/comparison.md speaks of torch 2.11"
)


def test_rendezvous_compares_sizes_alone(tmp_path: Path) -> None:
    """With backend CUDA: two tensors in opposite order pass, unequal sizes do not, and the backend stays."""
    run = rehearse("torch_symmetric.py", "CUDA", "swapped", "backend", "uneven", log=tmp_path, ranks=2)
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["swapped"] == ""
        assert "Backend can not be changed after use" in facts["backend"]
        assert "Expected reqs[r].block_size == reqs[0].block_size" in facts["uneven"]


def test_windows_of_torch_are_compared(tmp_path: Path) -> None:
    """With backend NCCL: ranks that pass unequal tensors hear what differs, before NCCL is called."""
    run = rehearse("torch_symmetric.py", "NCCL", "uneven", log=tmp_path, ranks=2)
    run.assert_good()
    for rank in (0, 1):
        told = run.facts(rank)["uneven"]
        assert told.startswith("DistBackendError")
        assert "Failed to window register segment" in told
    (line, other) = run.finished.lines("""the ranks differ at "register a window of the program's own\"""")
    assert line == other
    assert "rank 0 wants '4194304 bytes, flags 1'; rank 1 wants '8388608 bytes, flags 1'" in line


def test_torch_ends_its_device_communicator_too_late(tmp_path: Path) -> None:
    """With backend NCCL: after the communicator, which a rehearsal names."""
    run = rehearse("torch_symmetric.py", "NCCL", "swapped", log=tmp_path, ranks=2)
    assert run.status == RULES_BROKEN, run.output
    assert run.broken == ["C5"]
    assert "ncclDevCommDestroy after ncclCommDestroy" in run.finished.err

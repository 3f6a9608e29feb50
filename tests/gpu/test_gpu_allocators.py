"""Allocators that cannot be followed are recognised on a real device, and the job runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.launch import IS_NCCL2, ROOT, launch
from gpu.test_gpu_symmetric import play, told

ends_the_process = pytest.mark.xfail(
    IS_NCCL2, strict=True, raises=AssertionError, reason="the end of nccl2 asks an allocator for what only torch's has"
)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("expandable_segments:True", "expandable_segments"),
        pytest.param("backend:cudaMallocAsync", "foreign_allocator", marks=ends_the_process),
    ],
)
def test_an_unsupported_allocator_is_named_once_and_the_job_runs(
    ranks: int, tmp_path: Path, setting: str, reason: str
) -> None:
    """The reason is in every rank's log, once, with advice, and training ends well."""
    result = launch(ROOT / "examples" / "train_ddp.py", ranks, tmp_path, PYTORCH_CUDA_ALLOC_CONF=setting)

    assert result.status == 0, result.output
    assert ranks == result.output.count("hook.unsupported"), result.output
    assert [reason] * ranks == [event["reason"] for event in result.events("hook.unsupported")]


def test_no_caching_is_named_and_the_job_runs(ranks: int, tmp_path: Path) -> None:
    """PYTORCH_NO_CUDA_MEMORY_CACHING leaves no segments to follow."""
    result = launch(ROOT / "examples" / "train_ddp.py", ranks, tmp_path, PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    assert result.status == 0, result.output
    assert ranks == result.output.count("hook.unsupported"), result.output


def test_expandable_segments_are_followed(ranks: int, tmp_path: Path) -> None:
    """After growing, shrinking and growing again, the mapped ranges are what the allocator's snapshot shows."""
    setting = "expandable_segments:True"
    result = play("expandable.py", "first", ranks=ranks, log=tmp_path, PYTORCH_CUDA_ALLOC_CONF=setting)

    for facts in told(result, ranks):
        for at in ("grown", "holes", "grown_again", "freed"):
            assert facts[at]["ours"] == facts[at]["torch"], at
            assert facts[at]["differences"] == 0, at
        assert len(facts["holes"]["ours"]) > 1, "memory went from the middle"
        assert (facts["reason"], facts["symmetric"], facts["sum"]) == ("expandable_segment", True, ranks)
    assert result.events("range.unmap")


def test_what_torchs_hook_registers_is_recorded(ranks: int, tmp_path: Path) -> None:
    """With torch's own registration hook on, its registrations are in the log, and none of ours."""
    job = ROOT / "examples" / "train_ddp.py"
    result = launch(job, ranks, tmp_path, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")

    assert result.status == 0, result.output
    made = result.events("register.local")
    assert made
    assert all(event["observed"] and event["ok"] for event in made)

"""Allocators that cannot be followed are recognised on a real device, and the job runs on."""

from __future__ import annotations

import pytest
from launch import ROOT, launch


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("expandable_segments:True", "expandable_segments"),
        ("backend:cudaMallocAsync", "foreign_allocator"),
    ],
)
def test_an_unsupported_allocator_is_named_once_and_the_job_runs(ranks, tmp_path, setting, reason) -> None:
    """The reason is in every rank's log, once, with advice, and training ends well."""
    result = launch(ROOT / "examples" / "train_ddp.py", ranks, tmp_path, PYTORCH_CUDA_ALLOC_CONF=setting)

    assert result.status == 0, result.output
    assert ranks == result.output.count("hook.unsupported"), result.output
    assert [reason] * ranks == [event["reason"] for event in result.events("hook.unsupported")]


def test_no_caching_is_named_and_the_job_runs(ranks, tmp_path) -> None:
    """PYTORCH_NO_CUDA_MEMORY_CACHING leaves no segments to follow."""
    result = launch(ROOT / "examples" / "train_ddp.py", ranks, tmp_path, PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    assert result.status == 0, result.output
    assert ranks == result.output.count("hook.unsupported"), result.output

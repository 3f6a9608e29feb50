"""Communicators that end, well and badly, on real devices."""

from __future__ import annotations

from pathlib import Path

from gpu.launch import IS_NCCL2, JOBS, launch


def test_allocation_after_destroy_works_where_torchs_own_hook_raises(ranks: int, tmp_path: Path) -> None:
    """After destroy_process_group, the stock group's hook makes torch.empty raise; with ours it works."""
    torchs = launch(JOBS / "after_destroy.py", ranks, None, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
    ours = launch(JOBS / "after_destroy.py", ranks, tmp_path)

    assert ["fine" if IS_NCCL2 else "DistBackendError"] * ranks == torchs.values("outcome"), torchs.output
    assert ["fine"] * ranks == ours.values("outcome"), ours.output
    assert [0] * ranks == [counts.local.left for counts in ours.summaries]


def test_a_watchdog_abort_ends_the_ranks_and_is_in_the_log(ranks: int, tmp_path: Path) -> None:
    """A rank that never arrives: the others abort in time, and their logs say so.

    The stock group ends the process then; `nccl2` lets it end by itself, with status 0.
    """
    quick = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
    result = launch(JOBS / "never_arrives.py", ranks, tmp_path, timeout=90, **quick)

    assert result.status != -14, result.output
    if not IS_NCCL2:
        assert result.status != 0, result.output
        assert "Watchdog caught collective operation timeout" in result.output
    aborts = result.events("communicator.abort")
    assert len(aborts) >= 1, result.output
    for log in result.logs:
        names = [event["event"] for event in log.events]
        if "communicator.abort" in names:
            after = names[names.index("communicator.abort") + 1 :]
            assert "register.local" not in after
            assert "deregister.local" not in after

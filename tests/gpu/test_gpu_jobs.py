"""Whole jobs on real devices, with the hook on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.launch import JOBS, ROOT, Result, launch


def assert_complete(result: Result, ranks: int) -> None:
    """Every rank logged to its end, registered everything it had, and left nothing behind."""
    assert result.status == 0, result.output
    assert ranks == len(result.logs), result.output
    for log, counts in zip(result.logs, result.summaries, strict=True):
        assert log.ended, log.path
        assert counts.local.left == 0, counts
        assert counts.failures == 0, counts
        assert counts.local.made > 0, counts


def test_the_tour_ends_with_nothing_left(ranks: int, tmp_path: Path) -> None:
    """Groups, splits, aborts and ends leave no registration behind, and each key stands in the log of each member."""
    result = launch(ROOT / "examples" / "tour.py", ranks // 2 * 2, tmp_path, SYMM_REGISTER_CHECK="1")

    assert_complete(result, ranks // 2 * 2)
    assert all(event["ok"] for event in result.events("ledger.check"))
    seen: dict[str, int] = {}
    for event in result.events("communicator.ready"):
        seen[event["comm"]] = seen.get(event["comm"], 0) + 1
        size = event["ranks"]
    whole = [key for key, count in seen.items() if count == ranks // 2 * 2]
    assert len(whole) >= 2, (seen, size)


@pytest.mark.parametrize("script", ["train_ddp.py", "serve_tp_dp.py"])
def test_an_example_runs(ranks: int, tmp_path: Path, script: str) -> None:
    """The examples run unchanged with the hook on."""
    result = launch(ROOT / "examples" / script, ranks // 2 * 2, tmp_path)

    assert_complete(result, ranks // 2 * 2)


def test_every_registration_has_a_handle(ranks: int, tmp_path: Path) -> None:
    """NCCL takes every segment for good: no registration is without effect."""
    result = launch(JOBS / "features.py", ranks, tmp_path)

    assert_complete(result, ranks)
    assert ["yes"] * ranks == result.values("ok")
    assert [event for event in result.events("register.local") if not event.get("effective", True)] == []


def test_fsdp2_losses_are_equal_with_and_without_the_hook(ranks: int, tmp_path: Path) -> None:
    """Registration changes no number: the losses of FSDP2 are equal to the last bit."""
    plain = launch(JOBS / "fsdp2.py", ranks, None)
    hooked = launch(JOBS / "fsdp2.py", ranks, tmp_path)

    assert_complete(hooked, ranks)
    assert len(plain.values("loss")) == 8, plain.output
    assert plain.values("loss") == hooked.values("loss")


def test_non_blocking_communicators_are_registered_once_ready(ranks: int, tmp_path: Path) -> None:
    """With TORCH_NCCL_USE_COMM_NONBLOCKING=1 the same job registers, and leaves nothing."""
    result = launch(ROOT / "examples" / "train_ddp.py", ranks, tmp_path, TORCH_NCCL_USE_COMM_NONBLOCKING="1")

    assert_complete(result, ranks)


def test_a_model_compiled_by_inductor_is_reduced_in_windows(ranks: int, tmp_path: Path) -> None:
    """One graph gives what the layers give without a compiler, in windows, with NCCL's symmetric kernels."""
    count = 2 if ranks < 4 else 4  # what divides the layers' widths
    result = launch(JOBS / "compiled_layer.py", count, tmp_path, timeout=300, NCCL_NVLS_ENABLE="0")

    assert_complete(result, count)
    assert len(result.values("error")) == count, result.output
    assert all(float(error) < 2**-6 for error in result.values("error")), result.output  # roundings of bf16
    assert result.values("symmetric") == ["True"] * count, result.output
    assert all(int(kernels) > 0 for kernels in result.values("kernels")), result.output
    assert result.values("filled") == ["True"] * count, result.output  # inductor writes into tracehook.empty's memory

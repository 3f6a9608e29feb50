"""Communicators that are suspended and resumed, by NCCL itself (2.29.7 and later) and on real devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.launch import JOBS, launch

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.nccl.version() < (2, 29, 7), reason="this NCCL suspends no communicator"
)
VMM: dict[str, Any] = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "auto"}


@pytest.mark.parametrize("how", ["call", "pause"])
def test_windows_registrations_and_graphs_outlive_a_suspend(ranks: int, tmp_path: Path, how: str) -> None:
    """Results are right before and after each of three cycles, eager and replayed, and nothing is registered again."""
    result = launch(JOBS / "suspended.py", ranks, tmp_path, how, **VMM)
    assert result.status == 0, result.output
    assert result.values("wrong") == ["0"] * ranks, result.output
    for name in ("windows", "held"):
        assert result.values(f"{name}_after") == result.values(f"{name}_before"), result.output
    assert set(result.values("suspended")) == {"True"}, result.output
    slept = result.events("communicator.suspend")
    assert [event["ok"] for event in slept] == [True] * 3 * ranks
    assert min(event["released"] for event in slept) > 0
    assert len(result.events("communicator.resume")) == 3 * ranks


def test_a_suspended_communicator_refuses_calls(ranks: int, tmp_path: Path) -> None:
    """The call raises, and after the resume results are right."""
    result = launch(JOBS / "suspended.py", ranks, tmp_path, "used", **VMM)
    assert result.status == 0, result.output
    assert len(result.values("outcome")) == 3 * ranks, result.output
    assert set(result.values("outcome")) <= {"DistBackendError", "RuntimeError"}, result.output  # by torch's group
    assert result.output.count("is_suspended_(ncclCommSuspend)") == 3 * ranks, result.output
    assert result.values("wrong") == ["0"] * ranks, result.output

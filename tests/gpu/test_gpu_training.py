"""The drop-in for FSDP2 on real devices: the same training, on NCCL's symmetric kernels."""

from __future__ import annotations

import json
from pathlib import Path

from gpu.launch import JOBS, launch


def test_fsdp2_trains_alike_on_symmetric_kernels(ranks: int, tmp_path: Path) -> None:
    """With tracehook's buffers the losses are those without, and all-gathers are symmetric kernels; so are its sums."""
    result = launch(JOBS / "fsdp_dropin.py", ranks, tmp_path, timeout=170, NCCL_NVLS_ENABLE="0")

    assert result.status == 0, result.output
    told = json.loads(next(line for line in result.output.splitlines() if line.startswith('{"ranks"')))
    for name in ("apply", "force_sum"):
        assert told[name]["windows"] > 0, told
        assert told[name]["loss_difference"] <= told["bound"], told
        assert all("Symk" in kernel for kernel in told[name]["all_gather"]["kernels"]), told
    assert all("Symk" in kernel for kernel in told["force_sum"]["reduce_scatter"]["kernels"]), told
    assert told["plain"]["windows"] == 0
    assert told["plain"]["all_gather"]["kernels"], told
    assert not any("Symk" in kernel for kernel in told["plain"]["all_gather"]["kernels"]), told
    assert all(told[name]["all_gather"]["kernels"] for name in ("apply", "force_sum")), told
    if ranks == 2:  # a sum of two numbers has one order
        bits = [
            told[name][key] for name in ("apply", "force_sum") for key in ("losses_bit_equal", "parameters_bit_equal")
        ]
        assert all(bits), told

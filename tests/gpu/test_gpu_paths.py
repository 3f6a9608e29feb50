"""The paths that explain names and that tracehook counts are those that NCCL takes, by the names of its kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.launch import JOBS, launch

WHERE = pytest.mark.parametrize(("where", "paths"), [([], {"symmetric", "plain"}), (["hosts"], {"plain"})])


@WHERE
def test_explain_names_the_path_that_runs(ranks: int, tmp_path: Path, where: list[str], paths: set[str]) -> None:
    """For each operation, type, choice of windows and size the profiler shows the kernel of that path.

    Between hosts, as NCCL takes them, windows lead to plain kernels.
    """
    result = launch(JOBS / "path_of_collectives.py", ranks, tmp_path, *where, timeout=300, NCCL_NVLS_ENABLE="0")

    assert result.status == 0, result.output
    rows = result.rows
    assert rows[-1]["rows"] == len(rows) - 1 == 108, result.output
    assert [row for row in rows[:-1] if not row["agrees"]] == []
    # Else a job in which nothing has a window, or nothing runs, would agree too.
    assert {row["seen"] for row in rows[:-1]} >= paths, result.output


@WHERE
def test_the_counts_of_paths_are_the_kernels_that_run(
    ranks: int, tmp_path: Path, where: list[str], paths: set[str]
) -> None:
    """For each operation and ten sizes, plain and symmetric, eager and captured: as many kernels of that path.

    Between hosts, as NCCL takes them, windows lead to plain kernels.
    """
    result = launch(JOBS / "paths_counted.py", ranks, tmp_path, *where, timeout=300, NCCL_NVLS_ENABLE="0")

    assert result.status == 0, result.output
    rows = result.rows
    assert (rows[-1]["rows"], rows[-1]["inexact"], rows[-1]["differ"]) == (len(rows) - 1, 0, 0), result.output
    assert len(rows) - 1 == 3 * 2 * 10 * 2
    assert {row["counted"][0][2] for row in rows[:-1]} >= paths, result.output

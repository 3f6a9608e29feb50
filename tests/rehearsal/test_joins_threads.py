"""A program joins, counts and profiles its own threads, and finds none of tracehook's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rehearsal import rehearse


@pytest.mark.parametrize("memory", ["torch", "vmm"])
def test_a_program_that_joins_all_threads_ends(tmp_path: Path, memory: str) -> None:
    """With a log, metrics, a store, alarms and windows."""
    env = {"SYMM_REGISTER_METRICS": str(tmp_path / "metrics"), "SYMM_REGISTER_MEMORY": memory}
    run = rehearse("joins_threads.py", ranks=2, log=tmp_path / "log", env=env)
    run.assert_good()
    expected = {"mine": [0, 1, 2], "count": 1, "followed": [], "count_at_the_end": 1}
    assert [run.facts(rank) for rank in range(2)] == [expected] * 2, run.output

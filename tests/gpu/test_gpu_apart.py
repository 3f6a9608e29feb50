"""No rank waits alone, on real devices: the cases of tests/rehearsal/jobs/apart.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu.launch import IS_NCCL2
from gpu.test_gpu_symmetric import play, told

SOON = 6.0  # seconds; SYMM_REGISTER_TIMEOUT is 30


def case(name: str, ranks: int, log: Path, **env: str) -> list[dict[str, Any]]:
    """Run one case; return the facts of each rank."""
    return told(play("apart.py", name, ranks=ranks, log=log, timeout=30, **env), ranks)


@pytest.mark.parametrize(
    ("name", "rank", "text"),
    [
        ("raises_inside", 0, "rank 1 could not go on: ValueError: the request was cancelled"),
        ("runs_out_of_memory", 0, "could not go on: OutOfMemoryError: CUDA out of memory"),
        ("skips", 0, "made call 1"),
        ("opposite_order", 0, "the ranks are not at the same point"),
    ],
)
def test_the_others_hear_at_once_and_the_group_works(
    ranks: int, tmp_path: Path, name: str, rank: int, text: str
) -> None:
    """A rank that does not come is named long before the time-out, and the next scope or call is right."""
    facts = case(name, ranks, tmp_path)
    assert text in facts[rank]["error"][1], facts
    assert facts[rank]["seconds"] < SOON, facts
    whole = ranks * (ranks + 1) / 2
    assert all(each["again"] in (whole, [whole, whole]) for each in facts), facts


def test_a_scope_and_a_collective_of_two_threads_may_come_in_any_order(ranks: int, tmp_path: Path) -> None:
    """Windows begin at one call on all ranks, and sync agrees."""
    whole = ranks * (ranks + 1) / 2
    for each in case("scope_beside_a_collective", ranks, tmp_path):
        assert (each["error"], each["synced"], each["sum"], each["later"]) == (None, None, whole, whole), each


def test_there_is_never_a_shifted_sum(ranks: int, tmp_path: Path) -> None:
    """Rank 0 hears who is inside NCCL; every further call is refused or aborted on all ranks.

    The abort of nccl2 waits for a call of rank 0, which waits for rank 1. So rank 1 ends itself, and the launcher both.
    """
    result = play("apart.py", "goes_on_after_mixed", ranks=ranks, log=tmp_path, timeout=30)
    if IS_NCCL2:
        assert result.status > 0, result.output
        assert "in a symmetric kernel of NCCL, which no abort ends: this process ends" in result.output
        return
    facts = told(result, ranks)
    assert "some ranks are in a symmetric kernel of NCCL and the others are not" in result.output
    assert facts[0]["seconds"] < SOON, facts
    assert all(None not in each["errors"] for each in facts), facts


def test_a_swap_of_known_tensors_is_announced(ranks: int, tmp_path: Path) -> None:
    """All ranks name the first call that differs."""
    for each in case("swaps_what_is_known", ranks, tmp_path):
        assert "the ranks used different memory at call 2" in each["error"][1], each
        assert each["seconds"] < SOON, each

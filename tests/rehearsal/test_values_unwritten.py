"""Large memory that nobody computed reads as NaN, or 0 in integers, wherever a program looks, and takes no memory."""

from __future__ import annotations

from typing import Any

import pytest
from support.rehearsal import Rehearsal, rehearse

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def play(case: str, ranks: int = 0, **variables: str) -> Rehearsal:
    """Run a case of values_unwritten.py, which ends well."""
    run = rehearse("values_unwritten.py", case, devices=max(ranks, 1), ranks=ranks, env=variables)
    run.assert_good()
    return run


def facts(case: str, **variables: Any) -> dict[str, Any]:
    """Return what a case tells."""
    return play(case, **variables).facts()


@pytest.mark.parametrize("variables", [{}, EXPANDABLE], ids=["segments", "expandable"])
def test_parts_of_new_memory(variables: dict[str, str]) -> None:
    """A part from the middle is NaN, however it is read, where another tensor lay before."""
    seen = facts("new_memory", **variables)
    assert seen.pop("sized") == 100, "NaN is not zero"
    assert [name for name, is_nan in seen.items() if not is_nan] == []


def test_new_memory_of_every_type() -> None:
    """Every type of floating point has its NaN; integers are 0."""
    assert [name for name, right in facts("types")["found"].items() if not right] == []


def test_parts_of_a_result_above_the_limit() -> None:
    """They are NaN, or 0 in integers; a copy of what the program brought there is right."""
    seen = facts("above_the_limit", TRACEHOOK_EMU_VALUES="1000000")
    assert [name for name, right in seen.items() if not right] == []


@pytest.mark.parametrize("variables", [{}, EXPANDABLE], ids=["segments", "expandable"])
def test_what_is_written_into_new_memory(variables: dict[str, str]) -> None:
    """It is right, also where the elements lie apart, and what lies beside it is NaN."""
    seen = facts("written", **variables)
    assert seen["right"] == [True] * 7
    assert seen["beside"] == [True] * 11


def test_new_memory_that_is_written_whole() -> None:
    """No NaN is left over."""
    assert facts("overwritten")["right"] == [True] * 11


def test_new_memory_that_another_tensor_takes() -> None:
    """What is computed there is right."""
    seen = facts("reused")
    assert seen["right"] is True
    assert seen["inside"] > 0, "some of the tensors lie where the large one lay"


def test_graphs_in_new_memory() -> None:
    """Each launch writes its part; the rest is NaN."""
    assert facts("graph") == {"first": [1.0, 2.0], "others": True}


def test_collectives_on_parts_of_new_memory() -> None:
    """Ranks get NaN of what nobody wrote, and the right sums and copies of what somebody did."""
    run = play("collectives", ranks=2)
    for rank in (0, 1):
        seen = run.facts(rank)
        assert seen == {"reduced": [True] * 4, "gathered": [True] * 2, "received": [True] * 3}, run.output


def test_collectives_above_the_limit() -> None:
    """The parts that somebody wrote arrive as they are, and those that nobody wrote as NaN."""
    run = play("large_collectives", ranks=2, TRACEHOOK_EMU_VALUES="1000000")
    for rank in (0, 1):
        seen = run.facts(rank)
        assert seen == {
            "gathered": [True] * 3,
            "second": [True] * 2,
            "reduced": [True] * 3,
            "received": [True] * 3,
        }, run.output


@pytest.mark.parametrize("limit", ["16777216", "1000000"], ids=["filled", "listed"])
def test_symmetric_kernels_on_new_memory(limit: str) -> None:
    """The parts of windows that somebody wrote arrive as they are, and those that nobody wrote as NaN."""
    run = play("windows", ranks=2, TRACEHOOK_EMU_VALUES=limit)
    for rank in (0, 1):
        seen = run.facts(rank)
        assert seen == {"symmetric": True, "gathered": [True] * 4, "reduced": [True] * 3}, run.output


@pytest.mark.parametrize("variables", [{}, EXPANDABLE], ids=["segments", "expandable"])
def test_peers_that_write_into_new_memory(variables: dict[str, str]) -> None:
    """What they put there is never taken for memory that nobody wrote."""
    run = play("peers", ranks=2, TRACEHOOK_EMU_VALUES="1000000", **variables)
    for rank in (0, 1):
        assert run.facts(rank)["found"] == [True] * 6, run.output


def test_what_a_large_tensor_takes() -> None:
    """Reading and writing parts of tensors of 1 GiB, and copying one, takes less than a hundredth of them."""
    seen = facts("footprint")
    assert seen["read"] is True
    assert seen["grown"] < 30

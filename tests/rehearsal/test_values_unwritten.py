"""Large memory that nobody computed reads as NaN, or 0 in integers, wherever a program looks, and takes no memory."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.rehearsal import Rehearsal, rehearse

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
LIMIT = {"TRACEHOOK_EMU_VALUES": "1000000"}


def play(case: str, ranks: int = 0, **variables: str) -> Rehearsal:
    """Run a case of values_unwritten.py, which ends well."""
    return rehearse("values_unwritten.py", case, devices=max(ranks, 1), ranks=ranks, env=variables).assert_good()


def assert_all_true(run: Rehearsal) -> None:
    """Assert that every rank told something, and nothing that is false."""
    for facts in run.told:
        assert facts
        assert [name for name, right in facts.items() if set(leaves(right)) != {True}] == [], run.output


def leaves(fact: Any) -> Iterator[object]:
    """Return what stands in lists and dictionaries."""
    if isinstance(fact, (list, dict)):
        for each in fact.values() if isinstance(fact, dict) else fact:
            yield from leaves(each)
    else:
        yield fact


@pytest.mark.parametrize("variables", [{}, EXPANDABLE], ids=["segments", "expandable"])
def test_parts_of_new_memory(variables: dict[str, Any]) -> None:
    """A part from the middle is NaN, however it is read, where another tensor lay before."""
    assert_all_true(play("new_memory", **variables))


@pytest.mark.parametrize(
    ("case", "variables"),
    [
        ("written", {}),  # also where the elements lie apart
        ("types", {}),  # every type of floating point has its NaN; integers are 0
        ("above_the_limit", LIMIT),  # also of results; a copy of what the program brought there is right
        ("overwritten", {}),  # written whole: no NaN is left over
        ("reused", {}),  # by another tensor, some of which lie where the large one lay: what is computed there is right
        ("graph", {}),  # each launch writes its part; the rest is NaN
    ],
)
def test_new_memory(case: str, variables: dict[str, Any]) -> None:
    """What somebody wrote there is right, and nothing else has a value."""
    assert_all_true(play(case, **variables))


@pytest.mark.parametrize(
    ("case", "variables"),
    [
        ("collectives", {}),
        ("large_collectives", LIMIT),
        ("windows", {"TRACEHOOK_EMU_VALUES": "16777216"}),  # filled
        ("windows", LIMIT),  # listed
        ("peers", LIMIT | EXPANDABLE),  # what they put there is never taken for memory that nobody wrote
    ],
)
def test_what_ranks_exchange_of_new_memory(case: str, variables: dict[str, Any]) -> None:
    """The parts that somebody wrote arrive as they are, those that nobody wrote as NaN; also in symmetric kernels."""
    assert_all_true(play(case, ranks=2, **variables))


def test_what_a_large_tensor_takes() -> None:
    """Reading and writing parts of tensors of 1 GiB, and copying one, takes less than a hundredth of them."""
    seen = play("footprint").facts()
    assert seen["read"] is True
    assert seen["grown"] < 30

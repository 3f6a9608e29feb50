"""tracehook.empty and the collectives that make their own outputs: values, and symmetric where sizes are equal."""

from typing import Any

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import alike, both, play

LENGTHS = {"default": [2, 2], "equal": [3, 3], "unequal": [1, 3], "with_none": [3, 0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the job once."""
    found = play("symmetric_patterns.py", log=tmp_path_factory.mktemp("patterns")).assert_good()
    assert alike(found, "right")
    return found


@pytest.mark.parametrize("where", ["world", "group"])
@pytest.mark.parametrize("sizes", LENGTHS)
def test_all_gather(run: Rehearsal, sizes: str, where: str) -> None:
    """The rows of all ranks come in order, as a tensor and as a list, and are symmetric if all have equally many."""
    first, second = LENGTHS[sizes]
    for found in both(run, f"gathered_{sizes}_{where}"):
        rows = [float(row) for row in range(first + second)]
        assert found["whole"] == rows
        assert found["parts"] == [rows[:first], rows[first:]]
        assert set(found["symmetric"]) == {first == second}


@pytest.mark.parametrize("where", ["world", "group"])
@pytest.mark.parametrize("sizes", LENGTHS)
def test_reduce_scatter(run: Rehearsal, sizes: str, where: str) -> None:
    """Each rank has the sum of its own rows, symmetric if all have equally many."""
    lengths = LENGTHS[sizes]
    for rank, found in enumerate(both(run, f"scattered_{sizes}_{where}")):
        begin = sum(lengths[:rank])
        wanted: dict[str, Any] = {"part": [2.0 * row + 1 for row in range(begin, begin + lengths[rank])]}
        wanted["symmetric"] = lengths[0] == lengths[1] if lengths[rank] else None
        assert found == wanted


def test_reduce_scatter_with_another_operator(run: Rehearsal) -> None:
    """The operator that is given is used."""
    assert [found["part"] for found in both(run, "maximum")] == [[1.0, 2.0], [3.0, 4.0]]


def test_empty(run: Rehearsal) -> None:
    """tracehook.empty takes shape and dtype like torch.empty; it is symmetric unless the ranks' sizes differ."""
    for rank, found in enumerate(both(run, "empty")):
        assert found == [[5, 7], "torch.bfloat16", f"cuda:{rank}", True]
    assert alike(run, "empty_unequal") is False


def test_all_reduce(run: Rehearsal) -> None:
    """It sums a copy of a matrix or a scalar, in symmetric memory, and leaves the input as it is."""
    for rank, found in enumerate(both(run, "reduced")):
        assert found == [[[3.0] * 3] * 2, [rank + 1.0], True, 3.0]


def test_sizes_that_do_not_fit_are_refused(run: Rehearsal) -> None:
    """Sizes that contradict the group or the tensor raise ValueError with both numbers."""
    few, shard, uneven, whole = run.facts(0)["complaints"]
    assert few == ["ValueError", "sizes has 3 entries, the group has 2 ranks: give one for each"]
    assert shard == ["ValueError", "the shard's first dimension is 2, but sizes says 5"]
    assert uneven[0] == "ValueError"
    assert "2 ranks cannot share equally" in uneven[1]
    assert whole == ["ValueError", "the input's first dimension is 2, but sizes says 11"]

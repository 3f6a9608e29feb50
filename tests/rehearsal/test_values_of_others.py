"""Values beside dense operations on one device: copies between devices, graphs' numbers, tensors of other kinds."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse

from tracehook.rehearsal import values


def test_copies_between_devices() -> None:
    """They arrive, also if PyTorch copies with one kernel that reads on one device and writes on another."""
    run = rehearse("values_of_others.py", "between", devices=2).assert_good()
    assert set(run.facts()["there"].values()) == {True}, run.facts()


def test_random_numbers_of_a_graph() -> None:
    """Each launch draws anew, and what it draws repeats with the seed."""
    run = rehearse("values_of_others.py", "graph").assert_good()
    assert run.facts() == {"repeat": True, "distinct": 8}


@pytest.mark.parametrize("kind", ["nested", "encoder", "sequences", "products", "sparse", "quantized", "bags"])
def test_tensors_of_other_kinds(kind: str) -> None:
    """Nested, sparse and quantized tensors have the host's values, and products that have a type of their own."""
    run = rehearse("values_of_others.py", kind).assert_good()
    assert max(run.facts()["far"]) < 1e-6, run.facts()


def test_a_kernel_that_nobody_computes_is_told(tmp_path: Path) -> None:
    """The last line names it, apart from what is NaN."""
    (tmp_path / "uncomputed.1").write_text("kernel at::native::secret_kernel\nlarge aten::add\n")
    assert values.uncomputed(tmp_path) == (
        "not computed, so NaN, or 0 in integers: aten::add (larger than --values allows); "
        "not computed, and what they should write is wrong without a sign: at::native::secret_kernel"
    )

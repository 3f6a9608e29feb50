"""What PyTorch's operations compute in a rehearsal is what they compute on the host."""

from typing import Any

import pytest
from support.rehearsal import rehearse, run_command


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp"])
def test_training(kind: str) -> None:
    """A tiny Llama on four ranks has the losses of the host, step by step."""
    run = rehearse("train_llama.py", kind, devices=4, ranks=4, timeout=120).assert_good()
    for facts in run.told:
        assert facts["losses"] == pytest.approx(facts["expected"], rel=0, abs=1e-5)
        assert facts["losses"][-1] < facts["losses"][0] - 0.1, "it learns something"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        ("float32", 800),
        ("float32 gradients", 500),
        ("float64", 400),
        ("bfloat16", 250),
        ("bfloat16 gradients", 250),
        ("complex64", 200),
        ("int64", 175),
        ("bool", 100),
    ],
)
def test_operations(arguments: str, least: int) -> None:
    """The samples of PyTorch's own tests give on an emulated device what they give on the host."""
    run = rehearse("operations.py", *arguments.split(), timeout=560).assert_good()
    assert run.facts()["differ"] == {}
    assert run.facts()["samples"] > least


def facts(case: str, **variables: str) -> dict[str, Any]:
    """Return what a case of values.py tells."""
    run = rehearse("values.py", case, env=variables).assert_good()
    return run.facts() | {"stderr": run.finished.err}


def test_what_a_program_sees() -> None:
    """Prints, comparisons, masks and conversions; new memory is NaN until somebody writes."""
    seen = facts("seen")
    assert seen["ones"] == [1.0] * 4
    assert seen["printed"] == "tensor([1.0000, 2.5000], device='cuda:0')"
    assert seen["equal"] is True
    assert seen["masked"] == [3.0, 4.0, 5.0]
    assert seen["converted"] == [[0, 1, 2], [3, 4, 5]]
    assert seen["unique"] == [1, 3]
    assert seen["product"] == [[5.0, 14.0], [14.0, 50.0]]
    assert seen["summed"] == 15.0
    assert seen["empty"] is True


def test_random_numbers() -> None:
    """They come from the device's seed and offset, are distributed as they should be, and repeat with their state."""
    seen = facts("random")
    assert [seen["same"], seen["differs"], seen["undisturbed"]] == [True] * 3
    assert abs(seen["mean"]) < 0.15
    assert seen["deviation"] == pytest.approx(1, abs=0.1)
    assert seen["kept"] == pytest.approx(0.75, abs=0.06)
    assert seen["scaled"] == pytest.approx(4 / 3)


def test_attention_drops_the_same_twice() -> None:
    """Of both fused kernels: those of float32 and of bfloat16."""
    for difference, deviation in facts("attention")["worst"].values():
        assert difference < 4
        assert deviation > 0.1, "something was dropped"


def test_cudnns_attention_is_never_chosen() -> None:
    """The next kernel that the program allows takes its place; PyTorch refuses where there is none."""
    seen = facts("choice_of_attention")
    assert seen["differs"] == pytest.approx(0, abs=0.02)
    assert seen["gradient"] is True
    assert "No viable backend" in seen["alone"]


def test_layers_of_libraries_that_are_not_emulated() -> None:
    """Convolutions and recurrent networks have the results and the gradients of the host."""
    for name, difference in facts("modules")["differ"].items():
        assert difference < 1e-4, name


def test_graphs() -> None:
    """Each launch computes."""
    assert facts("graph")["found"] == [8.0, 24.0]


def test_streams() -> None:
    """Values follow the order of streams and events."""
    assert facts("streams")["ratio"] == pytest.approx(1, abs=1e-5)


def test_a_tensor_above_the_limit() -> None:
    """It is NaN, and a size that depends on it is refused in one line that says what to do."""
    seen = facts("large", TRACEHOOK_EMU_VALUES="1000000")
    assert seen["ends"] == [True, True]
    assert seen["integers"] == 0
    assert "the size of what aten::nonzero returns depends on values" in seen["said"]
    assert "--values" in seen["said"]


def test_a_large_result_that_nobody_computes() -> None:
    """It is NaN from its first element to its last one, so a part of its middle is no old memory."""
    assert facts("uncomputed")["nan"] == [True, True]


def test_values_that_a_device_refuses() -> None:
    """One line names the operation."""
    seen = facts("refused")
    assert seen["nan"] is True
    assert "rehearsal: aten::index_select cannot be computed of these values: index out of range" in seen["stderr"]


def test_a_write_out_of_bounds_ends_the_use_of_the_device() -> None:
    """As on a device, where the kernel asserts: every later call fails."""
    assert facts("asserted")["said"] == ["CUDA error: device-side assert triggered"] * 2


def test_symmetric_memory_of_torch() -> None:
    """Ranks see each other's buffers. What kernels reduce there is NaN."""
    run = rehearse("values.py", "symmetric", devices=2, ranks=2).assert_good()
    for rank in (0, 1):
        assert run.facts(rank) == {"peer": [2.0 - rank] * 4, "reduced": True}


def test_what_was_not_computed_is_told_at_the_end() -> None:
    """Once, with the reason."""
    code = "import torch; torch.ones(1000, device='cuda') + 1"
    done = run_command("-c", code, devices=1, options=("--values", "100"))
    assert done.status == 0, done.output
    (line,) = [line for line in done.err.splitlines() if "not computed" in line]
    assert line == (
        "rehearsal: not computed, so NaN, or 0 in integers: aten::add, aten::fill_ (larger than --values allows)"
    )


def test_values_can_be_switched_off() -> None:
    """Then a size that depends on values is refused, and kernels do nothing."""
    code = "import torch; print(torch.ones(2, device='cuda').tolist()); torch.ones(2, device='cuda').nonzero()"
    done = run_command("-c", code, devices=1, options=("--values", "off"))
    assert done.status == 1
    assert done.out.splitlines()[0] == "[0.0, 0.0]"
    assert "computes values of tensors of up to 0 elements" in done.err


@pytest.mark.parametrize("text", ["many", "-1", "nan", "1e400"])
def test_an_unreadable_limit(text: str) -> None:
    """One line, and nothing is started."""
    done = run_command("-c", "print(1)", devices=1, options=("--values", text))
    assert (done.status, done.out) == (2, "")
    assert "expected a number of elements, such as 1e8, or off" in " ".join(done.err.replace("│", " ").split())

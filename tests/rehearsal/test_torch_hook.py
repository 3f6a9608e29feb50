"""What PyTorch's own registration hook does wrong, and tracehook does not. A test here fails when PyTorch mends it.

More is in test_holes_of_torch.py, and what tracehook does with two devices in test_devices.py.
"""

from pathlib import Path

from support.rehearsal import rehearse

TORCH_HOOK = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}


def test_torch_dies_of_a_second_device() -> None:
    """With torch's hook, a segment on a second device makes the creation of a communicator fail."""
    run = rehearse("two_devices.py", devices=2, env=TORCH_HOOK)
    assert "Mismatch between CUDA memory segment device" in run.facts()["first"], run.output
    assert run.status != 0


def test_torch_misses_a_segment_born_during_a_birth() -> None:
    """With torch's hook, a segment born between a communicator's snapshot and its entry in the table is missed.

    Freeing it raises. The hole is held open by a slow registration of an older segment.
    """
    run = rehearse("meanwhile.py", "born", env=TORCH_HOOK, faults="ncclCommRegister:slow@1=5s")
    facts = run.facts()
    assert facts["calls_at_birth"] == 1, run.output
    assert facts["registered"] == 1, run.output
    assert "is not registered" in facts["empty_cache"], run.output


def test_a_segment_born_during_a_birth(tmp_path: Path) -> None:
    """With tracehook, such a segment is registered before the next collective, and freeing it works."""
    run = rehearse("meanwhile.py", "born", log=tmp_path, faults="ncclCommRegister:slow@1=5s").assert_good()
    facts = run.facts()
    assert facts["calls_at_birth"] == 1, run.output
    assert facts["registered"] == 2
    assert facts["empty_cache"] == ""


def test_torch_pools_miss_pairs() -> None:
    """With `register_mem_pool`, a segment is registered with the group's communicator, not with that of a pair."""
    run = rehearse("pairs.py", "pool", ranks=2, timeout=90)
    for rank in (0, 1):
        assert run.facts(rank)["made"] == 2, run.output
        assert run.facts(rank)["registered"] == 1, run.output


def test_pairs(tmp_path: Path) -> None:
    """With tracehook, a segment is registered with the communicators of group and pair, whose keys the ranks share."""
    run = rehearse("pairs.py", "plain", ranks=2, log=tmp_path, timeout=90).assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["made"] == 2
        assert run.facts(rank)["registered"] == 2
        assert run.facts(rank)["payload"] == 7.0
    keys = [{e["comm"] for e in run.events("communicator.pending", rank)} for rank in (0, 1)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 2

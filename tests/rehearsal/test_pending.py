"""Places of the tensors of scopes: they depend neither on the time that devices take, nor on the driver's addresses."""

from pathlib import Path

import pytest
from support.symmetric import alike, both, play
from support.torch_versions import BY_ITSELF, FREES_BESIDE_POOLS, needs_any_nccl2

JOB = "pending.py"


@pytest.mark.parametrize(
    "case", ["side_stream", "sends", "inside", "other_thread", "scopes_beside", "lent", "lent_on", "nested", "equal"]
)
def test_places_do_not_depend_on_the_device(tmp_path: Path, case: str) -> None:
    """Ranks whose devices take different times get the same places, and use memory again."""
    run = play(JOB, case, "1", log=tmp_path).assert_good()
    places = alike(run, "places")
    assert both(run, "wrong") == [False, False]
    assert alike(run, "distinct") < len(places), "memory is used again"
    assert "tracehook:" not in run.finished.err, run.output


def test_a_program_hears_that_what_it_lends_comes_back_when_the_group_is_closed(tmp_path: Path) -> None:
    """A loop that lends new tensors of scopes needs more memory in each turn: each rank says so once."""
    run = play(JOB, "lent_much", "1", log=tmp_path).assert_good()
    said = [line for line in run.finished.err.splitlines() if line.startswith("tracehook:")]
    assert len(said) == 2, run.output
    assert all("more than 256 MiB, that it has lent to peers" in line for line in said), said


@pytest.mark.parametrize("nccl2", ["0", pytest.param("1", marks=needs_any_nccl2)])
def test_a_program_may_give_up_what_a_call_has_used(tmp_path: Path, nccl2: str) -> None:
    """With nccl2 of torch 2.14, which keeps it until a later call finds the device done, no memory is symmetric."""
    run = play(JOB, "calls", "1", log=tmp_path, TORCH_DIST_USE_NCCL2=nccl2).assert_good()
    assert alike(run, "sum") == 3.0
    has_windows = nccl2 == "0" or BY_ITSELF
    assert alike(run, "symmetric") == has_windows
    said = [line for line in run.finished.err.splitlines() if line.startswith("tracehook:")]
    assert len(said) == (0 if has_windows else 2), said
    assert all("set TORCH_DIST_USE_NCCL2=0" in line for line in said), said


def test_a_scope_does_not_wait_for_ever(tmp_path: Path) -> None:
    """A device that is not done after ten seconds is named once, and the scope goes on without that memory."""
    run = play(JOB, "stuck", "1", log=tmp_path).assert_good()
    first, second = alike(run, "places")
    assert first != second
    said = [line for line in run.finished.err.splitlines() if "still uses memory of a symmetric pool" in line]
    assert len(said) == 2, run.output
    assert all(line.startswith(("tracehook: device 0 ", "tracehook: device 1 ")) for line in said), said


def test_inside_a_pool_of_the_program_it_waits_if_torch_looks_there(tmp_path: Path) -> None:
    """Before 2.13 torch looks for no end of a use there, so no scope waits for one and nothing is said."""
    run = play(JOB, "beside_a_pool", "1", log=tmp_path).assert_good()
    first, second = alike(run, "places")
    assert first != second
    assert run.finished.err.count("still uses memory") == (2 if FREES_BESIDE_POOLS else 0), run.output


def test_events_of_the_program_are_not_held(tmp_path: Path) -> None:
    """An event that the program recorded is done when the device says so, also while a scope is open."""
    run = play(JOB, "own_events", "1", log=tmp_path).assert_good()
    assert alike(run, "answered") == [True, True]

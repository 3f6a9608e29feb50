"""What a collective uses stays registered until the device has finished it, however late another rank comes."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse


def _play(how: str, log: Path) -> Rehearsal:
    run = rehearse("late_peer.py", how, ranks=2, log=log)
    assert run.facts(0)["end"] == run.facts(1)["end"] == "reached", run.output
    assert run.facts(0)["ran"] is True, "the collective was not under way"
    assert run.facts(0).get("left", 0) == 0, "the memory was not freed"
    return run


@pytest.mark.parametrize("how", ["free", "off"])
def test_nothing_is_deregistered_under_a_collective(tmp_path: Path, how: str) -> None:
    """A free, and `disable()`, wait for the device before they undo a registration."""
    _play(how, tmp_path).assert_good()


def test_a_free_beside_a_capture_waits_for_the_device_and_leaves_the_capture_alone(tmp_path: Path) -> None:
    """Another thread captures a stream in the mode in which CUDA lets this one free memory: its graph is whole."""
    run = _play("capture", tmp_path).assert_good()
    assert run.facts(0)["capture"] == 0


@pytest.mark.parametrize("strict", ["1", "0"])
def test_one_rank_without_registrations_breaks_the_rule(tmp_path: Path, strict: str) -> None:
    """One rank called `disable()` and the other did not: with NVLS that would hang, so a rehearsal says it."""
    run = rehearse("late_peer.py", "alone", ranks=2, log=tmp_path, env={"TRACEHOOK_EMU_STRICT_L7": strict})
    assert run.broken == (["L7"] if strict == "1" else []), run.output
    assert run.facts(0)["end"] == run.facts(1)["end"] == "reached", run.output

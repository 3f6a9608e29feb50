"""tracehook enabled in the middle of a job: what exists already is adopted."""

from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal, rehearse

from tracehook.audit.summary import summarise


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Two ranks that create groups and segments first."""
    return rehearse(
        "adopt.py", "again_and_again", log=tmp_path_factory.mktemp("adopt"), hook=False, ranks=2, timeout=90
    )


def _held(status: dict[str, Any]) -> list[int]:
    return sorted(row["held"] for row in status["communicators"])


def test_the_job_ends_well(adopted: Rehearsal) -> None:
    """Enabling, disabling and enabling again in a running job breaks no rule."""
    adopted.assert_good()
    assert adopted.facts()["before"] == "off"
    assert adopted.facts()["calls_before"] == 0


def test_all_segments_with_all_communicators(adopted: Rehearsal) -> None:
    """After enabling, each adopted communicator holds each live segment, also one born later."""
    for facts in adopted.told:
        live = facts["live"]
        assert facts["enabled"]["state"] == "on"
        assert facts["enabled"]["segments"] == live
        assert len(facts["enabled"]["communicators"]) >= 3, "default, whole, split"
        assert set(_held(facts["enabled"])) == {live}
        assert set(_held(facts["grown"])) == {live + 1}


def test_ranks_and_keys_of_the_adopted(adopted: Rehearsal) -> None:
    """An adopted communicator has its rank, its size, and a key that its ranks share."""
    rows = [adopted.facts(rank)["enabled"]["communicators"] for rank in (0, 1)]
    shared = [{row["key"]: row["rank"] for row in of if row["size"] == 2} for of in rows]
    assert set(shared[0]) == set(shared[1])
    assert len(shared[0]) >= 3
    assert all((row["rank"], row["size"]) in ((rank, 2), (0, 1)) for rank in (0, 1) for row in rows[rank])


def test_disable_deregisters_all(adopted: Rehearsal) -> None:
    """After disabling, nothing is held, every registration was undone, and nothing new is registered."""
    for facts in adopted.told:
        assert facts["disabled"]["state"] == facts["while_off"]["state"] == "off"
        assert set(_held(facts["disabled"])) == {0}
        assert facts["made"] == facts["undone"] > 0
        assert set(_held(facts["while_off"])) == {0}


def test_enabling_again_is_complete(adopted: Rehearsal) -> None:
    """What came and went while off is known when registration is switched on again."""
    for facts in adopted.told:
        assert facts["again"]["state"] == "on"
        assert facts["again"]["segments"] == facts["live_again"]
        assert set(_held(facts["again"])) == {facts["live_again"]}
        assert facts["end"]["communicators"] == []
    for log in adopted.logs:
        assert (summarise(log).local.left, summarise(log).failures) == (0, 0)


@pytest.mark.parametrize("kind", ["bound", "unbound"])
def test_current_device_is_another(tmp_path: Path, kind: str) -> None:
    """A group on device 1 is adopted with the segments of device 1, whatever the current device is."""
    run = rehearse("adopt.py", "elsewhere", kind, log=tmp_path, hook=False, devices=2).assert_good()
    rows = run.facts()["status"]["communicators"]
    assert [(row["device"], row["held"]) for row in rows] == [(1, 1)], run.output


def test_group_on_two_devices(tmp_path: Path) -> None:
    """A group that was used on two devices is adopted with both of its communicators."""
    run = rehearse("adopt.py", "elsewhere", "both", log=tmp_path, hook=False, devices=2).assert_good()
    rows = run.facts()["status"]["communicators"]
    assert sorted((row["device"], row["held"]) for row in rows) == [(0, 1), (1, 1)], run.output


def test_aborted_group_is_no_obstacle(tmp_path: Path) -> None:
    """A group that was aborted before is left out, and the living one is adopted."""
    run = rehearse("adopt.py", "after_an_abort", log=tmp_path, hook=False).assert_good()
    status = run.facts()["status"]
    assert status["state"] == "on", run.output
    assert [row["held"] for row in status["communicators"]] == [1]


def test_attached_by_hand(tmp_path: Path) -> None:
    """A communicator that tracehook did not see made gets the segments of its device while it is attached.

    One that was made later is known already, and a line on stderr says so.
    """
    run = rehearse("adopt.py", "by_hand", log=tmp_path, hook=False, devices=2).assert_good()
    facts = run.facts()
    assert facts["errors"]["not_enabled"].startswith("RuntimeError: ")
    assert "tracehook.enable()" in facts["errors"]["not_enabled"]
    assert facts["errors"]["null"].startswith("ValueError: tracehook: 0 ")
    assert (facts["first"], facts["second"]) == (True, False)
    assert (facts["gone"], facts["again"]) == (True, False)
    assert [(row["device"], row["held"]) for row in facts["status"]["communicators"]] == [(0, 1)]
    assert _held(facts["grown"]) == [2]
    assert _held(facts["shrunk"]) == [1]
    assert facts["detached"] == []
    (known,) = facts["known"]
    assert (facts["needless"], known["held"]) == (False, 1)
    assert f"communicator {known['key']} was seen when it was made: attach_communicator is not needed" in run.output
    assert summarise(run.log()).local.left == 0


def test_enabling_while_cuda_comes_up_is_no_deadlock() -> None:
    """One thread enables and another brings CUDA up, in either order of the two locks: both come through."""
    run = rehearse("adopt.py", "while_cuda_comes_up", env={"SYMM_REGISTER_HOOK": "0"}, timeout=60)
    assert run.facts() == {"stuck": False, "state": "on"}, run.output

"""Two devices in one process: registration never moves the current device."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """The job on two devices, whose ledger is compared."""
    log = tmp_path_factory.mktemp("devices")
    env = {"SYMM_REGISTER_CHECK": "1"}
    return rehearse("two_devices.py", devices=2, log=log, env=env).assert_good()


def test_the_current_device_stays(run: Rehearsal) -> None:
    """After every call that makes or ends a communicator, or registers, the current device is the program's."""
    assert run.facts()["moved"] == []
    assert all(check["ok"] for check in run.events("ledger.check"))


def test_segments_on_two_devices(run: Rehearsal) -> None:
    """Each communicator gets the segments of its own device and no others, at birth and later."""
    assert run.facts()["pair"] == [2.0, 2.0]
    device_of = {e["segment"]: e["device"] for e in run.events("segment.alloc") + run.events("segment.adopt")}
    home_of = {e["comm_id"]: e["device"] for e in run.events("communicator.pending")}
    registered = run.events("register.local")
    assert {0, 1} <= set(home_of.values())
    assert len(registered) > 4
    assert all(device_of[event["segment"]] == home_of[event["comm_id"]] for event in registered)


def test_no_rank_has_a_context_on_the_device_of_another(tmp_path: Path) -> None:
    """A context takes half a gibibyte: tracehook's own threads ask a device only where the program uses it."""
    run = rehearse("contexts.py", "3", ranks=2, log=tmp_path).assert_good()
    assert [run.facts(rank)["contexts"] for rank in (0, 1)] == [[True, False], [False, True]]

"""Two devices in one process: registration never moves the current device."""

from pathlib import Path

from support.rehearsal import rehearse


def test_the_current_device_stays(tmp_path: Path) -> None:
    """After every call that makes or ends a communicator, or registers, the current device is the program's."""
    run = rehearse("two_devices.py", devices=2, log=tmp_path, env={"SYMM_REGISTER_CHECK": "1"}).assert_good()
    assert run.facts()["moved"] == []
    assert all(check["ok"] for check in run.events("ledger.check"))


def test_no_rank_has_a_context_on_the_device_of_another(tmp_path: Path) -> None:
    """A context takes half a gibibyte: tracehook's own threads ask a device only where the program uses it."""
    run = rehearse("contexts.py", "3", ranks=2, log=tmp_path).assert_good()
    assert [run.facts(rank)["contexts"] for rank in (0, 1)] == [[True, False], [False, True]]

"""Two devices in one process: registration never moves the current device."""

from __future__ import annotations

from pathlib import Path

from support.rehearsal import rehearse


def test_the_current_device_stays(tmp_path: Path) -> None:
    """After every call that makes or ends a communicator, or registers, the current device is the program's."""
    run = rehearse("two_devices.py", devices=2, log=tmp_path, env={"SYMM_REGISTER_CHECK": "1"})
    run.assert_good()
    assert run.facts()["moved"] == []
    assert all(check["ok"] for check in run.events("ledger.check"))

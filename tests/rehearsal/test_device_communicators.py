"""Device communicators of programs: while one lives, tracehook ends no window of its communicator."""

import json
from pathlib import Path

import pytest
from support.audits import FINDINGS, Audit
from support.rehearsal import Rehearsal
from support.symmetric import alike, assert_broken, play

MIB = 1 << 20


def counted(run: Rehearsal, rank: int) -> list[tuple[str, bool, int]]:
    """Return what the log of a rank says of device communicators: event, success, how many live."""
    events = [event for event in run.log(rank).events if event["event"].startswith("device_communicator.")]
    return [(event["event"].partition(".")[2], event["ok"], event["device_communicators"]) for event in events]


def test_trim_leaves_windows_to_kernels(tmp_path: Path) -> None:
    """Unused memory stays on all ranks while one lives, is given back after it, and status and explain say so."""
    run = play("held_windows.py", "trimmed", log=tmp_path).assert_good()
    assert (alike(run, "held"), alike(run, "given_back")) == ({"live": 1, "pinned": 2}, 0)
    assert "stays while its 1 device communicator (ncclDevCommCreate) live" in alike(run, "explained")
    assert (alike(run, "free"), alike(run, "later")) == ({"live": 0, "pinned": 0}, 32 * MIB)
    assert "device communicator" not in alike(run, "explained_later")
    assert [counted(run, rank) for rank in (0, 1)] == [[("create", True, 1), ("destroy", True, 0)]] * 2


@pytest.mark.parametrize("case", ["grouped", "non_blocking"])
def test_one_that_nccl_makes_later_counts(tmp_path: Path, case: str) -> None:
    """At the end of a group of calls, or in the background; also on a communicator that torch did not make."""
    run = play("held_windows.py", case, log=tmp_path).assert_good()
    assert alike(run, "held")["live"] == 1
    assert [counted(run, rank) for rank in (0, 1)] == [[("create", True, 1), ("destroy", True, 0)]] * 2


def test_a_window_that_the_program_ends_first_is_found(tmp_path: Path) -> None:
    """The audit names the rank and the window, and not the window that went after the device communicator."""
    run = play("held_windows.py", "dropped", log=tmp_path)
    assert_broken(run, "W19")
    addresses = [run.events("register.window", rank)[0]["addr"] for rank in (0, 1)]
    audit = Audit(tmp_path, "--json").expect(FINDINGS)
    found = sorted((row["rule"], row["ranks"], row["message"]) for row in json.loads(audit.out)["findings"])
    assert [row[:2] for row in found] == [("window-under-device-communicator", [rank]) for rank in (0, 1)]
    assert all(f" at {address} " in row[2] for row, address in zip(found, addresses, strict=True)), found

"""Registered memory as an arm of ``tracehook tune``, and jobs that run calls on it as the table says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import SCRIPTS, run
from support.rehearsal import Rehearsal, rehearse, run_command

from tracehook.tuning.table import RegisteredPoint, Row, Table, load

CALLS = ("all_gather", "all_to_all", "send")
VMM = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "own"}
SIZES = [1 << 20, 1 << 21]
QUICK = ("--samples", "3", "--budget", "0", "--operations", "all_gather", "--smallest", "1MiB", "--largest", "2MiB")


def tune(folder: Path, *arguments: str, **env: str) -> Rehearsal:
    """Run the command on two ranks."""
    job = ("tuned.py", "none", "tune", *QUICK, "--out", str(folder / "tuned.json"), *arguments)
    return rehearse(*job, ranks=2, log=folder / "log", env=env, timeout=90)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsal, Table]:
    """Measure once with memory that NCCL can use; return also the table."""
    folder = tmp_path_factory.mktemp("measured")
    ran = tune(folder, **VMM).assert_good()
    return ran, load(folder / "tuned.json")


def test_the_table_has_every_call_on_registered_memory(measured: tuple[Rehearsal, Table]) -> None:
    """Eager and in graphs; the command shows them; other rows are what they were."""
    ran, table = measured
    assert set(table.registered) == {Row(call, "bfloat16", graph, 2, 1) for call in CALLS for graph in (True, False)}
    assert all([point.nbytes for point in points] == SIZES for points in table.registered.values())
    assert set(table.rows) == {Row("all_gather", "bfloat16", graph, 2, 1) for graph in (True, False)}
    for call in CALLS:
        assert f"{call}, bfloat16, 2 ranks, registered: microseconds" in ran.finished.out
    assert "Calls run on registered memory: all_gather " in ran.finished.out
    for rank in range(2):
        made, undone = (len(ran.events(f"{name}.local", rank)) for name in ("register", "deregister"))
        assert made == undone > 0


@pytest.mark.parametrize("env", [{}, {"SYMM_REGISTER_MEMORY": "vmm"}])
def test_without_memory_that_is_registered_at_calls_there_is_no_such_row(tmp_path: Path, env: dict[str, str]) -> None:
    """Segments of cudaMalloc; or SYMM_REGISTER_LOCAL=all, which these tests set if they say nothing."""
    ran = tune(tmp_path, "--mode", "eager", **env).assert_good()
    assert load(tmp_path / "tuned.json").registered == {}
    assert "registered" not in (tmp_path / "tuned.json").read_text() + ran.finished.out


def test_the_gain_that_doctor_prints_is_measured_on_two_ranks() -> None:
    """Of both times and their quotient; how long a call takes on emulated devices says nothing."""
    program = "from tracehook.tuning import gain; gain.SIZE, gain.SECONDS = '1MiB', 150; print(gain.measured())"
    ran = run_command("-c", program, devices=2)
    assert ran.status == 0, ran.output
    wanted = r"an all_gather of 1MiB between two devices takes \d+ us, on registered memory \d+ us: [\d.]+ times"
    assert re.search(wanted, ran.out), ran.output


def test_an_unknown_call_is_one_line() -> None:
    """What was seen and what was expected."""
    ran = run([SCRIPTS / "tracehook", "tune", "--registered", "broadcast"], {})
    assert ran.status == 2
    assert "--registered 'broadcast': expected all_gather, all_to_all, send" in ran.err


def by_hand(table: Table) -> Table:
    """Return it with other times: eager gathers gain from 2 MiB on, captured ones and sends never."""

    def points(*gains: float) -> list[RegisteredPoint]:
        return [RegisteredPoint(1 << 20 + at, 10.0, 10 / gain, gain) for at, gain in enumerate(gains)]

    eager = Row("all_gather", "bfloat16", False, 2, 1)
    rows = {
        eager: points(0.9, 1.2, 1.3),
        eager._replace(graph=True): points(0.9, 0.9, 0.9),
        eager._replace(operation="send"): points(1.5, 1.5, 0.9),
    }
    return replace(table, registered=rows)


def test_calls_run_on_registered_memory_as_the_table_says(tmp_path: Path, measured: tuple[Rehearsal, Table]) -> None:
    """On both ranks. Which calls do without such a table: tests/unit/test_measured_sizes.py."""
    path = tmp_path / "by_hand.json"
    path.write_text(by_hand(measured[1]).as_json())
    env = VMM | {"SYMM_REGISTER_POLICY": "measured", "SYMM_REGISTER_TUNED": str(path)}
    ran = rehearse("registered_calls.py", "by_table", ranks=2, log=tmp_path / "log", env=env).assert_good()
    for rank in range(2):
        made = ran.facts(rank)["made"]
        used = {"gathered 1": False, "gathered 2": True, "gathered 4": True, "sent 40": False}
        assert {name: bool(made[name]) for name in used} == used
        assert [made[f"values {size}"] for size in (1, 2, 4)] == [[1.0, 2.0]] * 3
        assert made["sent"] == 2.0
    told = "all_gather from 2 MiB (captured: never), all_to_all from 16 MiB (captured: 4 MiB), send never"
    assert told in ran.facts()["told"]
    assert ran.finished.lines("policy 'measured'") == []

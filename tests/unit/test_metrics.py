"""Metrics of a process: what they say, that they are bounded, and how files of them are written and merged."""

import io
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import tracehook
from tracehook.hook import status
from tracehook.log.event_counts import EventCounts, Missed
from tracehook.log.journal import Journal
from tracehook.metrics import writer
from tracehook.metrics.merged import Merged
from tracehook.metrics.readings import Sources, by_communicator, by_path, readings
from tracehook.metrics.series import Bounded, text
from tracehook.metrics.table import COMMON, METRICS
from tracehook.metrics.writer import Writer

PLACE = ("night 3", "2", "node7", "41")
ROW = {"failed": False, "ready": True, "held": 3, "local": "own", "segments_since_ns": 0, "windows_since_ns": 0}
ROW |= {"in_effect": 2, "in_vain": 1, "key": "ab", "size": 2, "memory": None}


def sources(**given):
    """Return what a quiet process has, with some of it changed."""
    return Sources(
        **{
            "status": status.nothing() | given.pop("status", {}),
            "facts": {"tracehook": "1.0", "torch": "2.11.0", "python": "3.11"}, "tally": EventCounts(),
            "collectives": {}, "called": {}, "schema": "1.13", "log_bytes": 0, "log_stopped": False, "pool_limit": 0,
            "time": 1000.0, "monotonic_ns": 50_000_000_000, "ended": 0.0,
        }
        | given
    )  # fmt: skip


def values(series):
    """Return the values by name of the sample and its own labels, in the order of the table."""
    return {
        (sample.name, *(sample.labels[name] for name in METRICS[sample.name].labels)): sample.value
        for metric in text_string_to_metric_families(text(series).decode())
        for sample in metric.samples
    }


def of(now, most=1000):
    """Return the values that a process with these sources gives."""
    return values(Bounded(most).of(readings(now), PLACE))


def test_a_registration_in_progress_has_the_time_of_its_beginning():
    """The oldest call tells; the other kind says 0."""
    rows = [ROW | {"windows_since_ns": 40_000_000_000}, ROW | {"windows_since_ns": 45_000_000_000}]
    found = of(sources(status={"communicators": rows}))
    name = "tracehook_registration_in_progress_since_timestamp_seconds"
    assert (found[name, "window"], found[name, "local"]) == (990.0, 0.0)
    assert found["tracehook_registrations_held", "own"] == 6


def test_counts_come_from_the_events(core, tmp_path):
    """Registrations that were made, undone and refused, with their seconds; those of a batch have them together."""
    core.push("register.local", duration_ns=1_000_000)
    core.push("register.local")
    core.push("register.batch", duration_ns=2_000_000)
    core.push("register.window", result=5)
    core.push("deregister.local")
    core.push("agreement.mismatch", duration_ns=3_000_000)
    journal = Journal(core, tmp_path / "log.jsonl", {})
    journal.tally = EventCounts()
    journal.flush()
    found = of(sources(tally=journal.tally))
    assert found["tracehook_registrations_made_total", "local"] == 2
    assert found["tracehook_registrations_made_total", "window"] == 0
    assert found["tracehook_registrations_undone_total", "local"] == 1
    assert found["tracehook_registrations_failed_total", "window", "register"] == 1
    assert found["tracehook_registration_seconds_total", "local", "register"] == 0.003
    assert found["tracehook_ranks_disagreed_total", "windows"] == 1
    assert found["tracehook_agreements_total", "mismatch"] == 1
    assert found["tracehook_problems_total", "agreement.mismatch"] == 1


def test_pools_and_scopes():
    """A pool says what it holds and what is idle; a pool without an open scope says 0 scopes."""
    pool = {"pool": "shared", "device": 0, "segments": 2, "bytes": 64, "retired_bytes": 32}
    scope = {"pool": "shared", "seconds": 1.5}
    status = {"pools": [pool, pool | {"pool": "tp"}], "scopes": [scope, scope | {"seconds": 9.0}]}
    found = of(sources(status=status, pool_limit=128))
    assert found["tracehook_pool_held_bytes", "shared", "0"] == 64
    assert found["tracehook_pool_idle_bytes", "shared", "0"] == 32
    assert found[("tracehook_pool_limit_bytes",)] == 128
    assert (found["tracehook_scopes_open", "shared"], found["tracehook_scopes_open", "tp"]) == (2, 0)
    assert found["tracehook_scope_longest_seconds", "shared"] == 9.0


def counted(**given):
    """Return one row of counts by path."""
    row = {"operation": "all_reduce", "bucket": 1024, "path": "symmetric", "captured": False, "count": 1, "nbytes": 9}
    return SimpleNamespace(**row | given)


def test_collectives_are_summed_over_communicators():
    """Number and bytes by operation, size, path and capture, whichever communicator they were on."""
    rows = [counted(count=2, nbytes=2000), counted(count=1, nbytes=900), counted(path="copy_engine", captured=True)]
    found = of(sources(collectives=by_path(rows)))
    assert found["tracehook_collectives_total", "all_reduce", "1024", "symmetric", "false"] == 3
    assert found["tracehook_collective_bytes_total", "all_reduce", "1024", "symmetric", "false"] == 2900
    assert found["tracehook_collectives_total", "all_reduce", "1024", "copy_engine", "true"] == 1


def test_collectives_of_a_communicator_are_counted():
    """Of each communicator that lives and has other ranks, also before its first call."""
    rows = [ROW | {"key": key, "size": size} for key, size in (("ab", 2), ("cd", 8), ("ef", 1))]
    called = by_communicator([counted(comm="ab", count=3), counted(comm="ab", count=4, captured=True)])
    found = of(sources(status={"communicators": rows}, called=called))
    name = "tracehook_communicator_collectives_total"
    assert {key[1]: value for key, value in found.items() if key[0] == name} == {"ab": 7, "cd": 0}


def test_the_number_of_series_is_bounded():
    """What has no place is counted by metric; what had one once keeps it, also if others come before it."""
    bounded = Bounded(60)
    common = list(readings(sources()))
    assert len(common) < 60
    rows = {("all_reduce", str(number), "plain", "false"): (number, number) for number in range(1, 100)}
    first = values(bounded.of(readings(sources(collectives=rows)), PLACE))
    assert len([key for key in first if key[0] != "tracehook_series_left_out"]) == 60
    left_out = sum(value for key, value in first.items() if key[0] == "tracehook_series_left_out")
    assert left_out == len(common) + 2 * 99 - 60
    later = values(bounded.of(readings(sources(collectives=dict(reversed(rows.items())))), PLACE))
    assert later == first


def test_every_series_has_the_labels_of_its_process():
    """Any text can be a label: quotes, line breaks, what is no UTF-8; a long one is cut."""
    series = Bounded().of(readings(sources()), ('a"b\\\n\udcff' + "x" * 1000, "", "h", "1"))
    for metric in text_string_to_metric_families(text(series).decode()):
        for sample in metric.samples:
            assert sample.labels["job_id"].startswith('a"b\\\n?xx')
            assert len(sample.labels["job_id"]) == 200
            assert set(COMMON) <= set(sample.labels)


def test_names_follow_the_conventions():
    """Counters, and only they, end with _total; time is in seconds and memory in bytes."""
    for name, metric in METRICS.items():
        assert name.startswith("tracehook_")
        assert name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert not set(metric.labels) & set(COMMON)


def test_memory_of_nccl_is_told_where_nccl_tells_it():
    """Each kind of each communicator has a series; a communicator of an older NCCL has none."""
    rows = [ROW | {"memory": {"suspendable": 0, "suspended": 7, "persistent": 2}}, ROW | {"key": "cd"}]
    name = "tracehook_communicator_memory_bytes"
    found = {key: value for key, value in of(sources(status={"communicators": rows})).items() if key[0] == name}
    assert found == {(name, "ab", "suspendable"): 0, (name, "ab", "suspended"): 7, (name, "ab", "persistent"): 2}


def test_all_values_are_in_the_table():
    """A value has a metric of the table and as many labels as it says."""
    rows = [ROW | {"memory": {"suspendable": 5, "suspended": 0, "persistent": 2}}]
    pools = [{"pool": "shared", "device": 0, "segments": 2, "bytes": 64, "retired_bytes": 32}]
    tally = EventCounts()
    tally._missed[Missed("ab", 1)] += 1
    now = sources(status={"communicators": rows, "pools": pools}, collectives=by_path([counted()]))
    found = list(readings(now))
    for reading in found:
        assert len(reading.labels) == len(METRICS[reading.metric].labels)
    only_sometimes = {"tracehook_series_left_out", "tracehook_problems_total", "tracehook_ranks_missed_total"}
    assert {reading.metric for reading in found} == set(METRICS) - only_sometimes


# --- files ---


def file_name(rank=0, pid=1):
    """Return the name of a process's file."""
    return f"tracehook.job.rank{rank}.host.{pid}.prom"


def test_files_are_merged(tmp_path):
    """Each metric stands once, with the series of all processes; what is no file of metrics is counted."""
    for rank in range(2):
        series = Bounded().of(readings(sources()), ("j", str(rank), "h", "1"))
        (tmp_path / file_name(rank)).write_bytes(text(series))
    (tmp_path / "other.prom").write_text("other 1\n")
    (tmp_path / file_name(8)).write_text("a {{{\n")
    os.mkfifo(tmp_path / file_name(9))
    merged = generate_latest(Merged(tmp_path)).decode()
    assert merged.count("# TYPE tracehook_segments gauge") == 1
    samples = [sample for metric in text_string_to_metric_families(merged) for sample in metric.samples]
    assert {sample.labels["rank"] for sample in samples if sample.name.endswith("_segments")} == {"0", "1"}
    assert "\nother" not in merged
    assert "tracehook_files_read 2.0" in merged
    assert "tracehook_files_unreadable 2.0" in merged


def test_a_directory_that_is_not_there_has_no_metrics(tmp_path):
    """A scrape before the job begins is no fault; the collector can be registered, as a server with workers does."""
    assert "tracehook_files_read 0.0" in generate_latest(Merged(tmp_path / "absent")).decode()
    registry = CollectorRegistry()
    registry.register(tracehook.metrics.collector(tmp_path))
    assert b"tracehook_files_read 0.0" in generate_latest(registry)


def test_the_file_is_written_at_once_and_at_the_end(tmp_path, until):
    """The directory is made. Nothing else is left in it."""
    numbers = iter((b"first", b"last"))
    path = tmp_path / "a" / "b" / file_name()
    writer = Writer(path, lambda: next(numbers), period=3600)
    writer.start()
    until(path.exists)
    assert path.read_bytes() == b"first"
    writer.finish()
    assert path.read_bytes() == b"last"
    assert list(path.parent.iterdir()) == [path]


def test_a_fault_is_said_once_and_tried_again(tmp_path, capsys, until):
    """The file comes as soon as it can be written."""
    path, make, said = tmp_path / file_name(), Mock(return_value=b""), io.StringIO()
    path.mkdir()  # so that no file can take its place
    writer = Writer(path, make, period=0.01)
    writer.start()
    until(lambda: said.write(capsys.readouterr().err) > 0)
    enough = make.call_count + 5
    until(lambda: make.call_count > enough)
    path.rmdir()
    until(path.is_file)
    writer.finish()
    lines = (said.getvalue() + capsys.readouterr().err).splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "tracehook tries again" in lines[0]


def test_a_file_system_that_stands_still_holds_nobody_up(tmp_path):
    """The end of the process waits for its last file for two seconds, and no longer."""
    begun, free = threading.Event(), threading.Event()

    def wait():
        begun.set()
        free.wait()
        return b""

    writer = Writer(tmp_path / file_name(), wait)
    writer.start()
    begun.wait()
    writer.finish()
    assert writer._thread.is_alive()
    free.set()
    writer._thread.join(20)


ENDLESS = """
import sys, time
from pathlib import Path
from tracehook.metrics.writer import Writer
writer = Writer(Path(sys.argv[1]), lambda: b"x" * 100_000 + b"end", period=0)
writer.start()
time.sleep(60)
"""


def test_a_killed_process_leaves_a_whole_file(tmp_path, until):
    """However often it is killed while it writes. What it had begun is removed after an hour."""
    path = tmp_path / file_name()
    for number in range(5):
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)])
        try:
            until(path.exists)
            time.sleep(0.03 * number)
        finally:
            process.kill()
            process.wait()
        assert path.read_bytes() == b"x" * 100_000 + b"end"
        path.unlink()
    path.write_text("")
    for file in tmp_path.iterdir():
        if file != path:
            os.utime(file, (0, time.time() - writer.KEPT - 60))
    writer.remove_stale(path)
    assert list(tmp_path.iterdir()) == [path]


def test_only_old_files_of_tracehook_are_removed(tmp_path):
    """A file of a process that lives, and one of somebody else, stay."""
    own, lives, gone = (tmp_path / file_name(pid=number) for number in (1, 2, 3))
    torn, other = tmp_path / f"{gone.name}.new", tmp_path / "node.prom"
    for file in (own, lives, gone, torn, other):
        file.write_text("")
    for file in (gone, torn, other):
        os.utime(file, (0, time.time() - writer.KEPT - 60))
    writer.remove_stale(own)
    assert set(tmp_path.iterdir()) == {own, lives, other}


# --- collector() ---


def test_the_program_of_the_page_serves_the_files(tmp_path):
    """Word for word, but for the port and the directory, which may come later."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(from prometheus_client import start.*?)thread\.join", page, re.DOTALL)
    directory, found = tmp_path / "metrics", dict[str, Any]()
    exec(program.replace("9427", "0").replace("/shared/metrics", str(directory)), found)
    directory.mkdir()
    (directory / file_name(0)).write_bytes(text(Bounded().of(readings(sources()), PLACE)))
    with urllib.request.urlopen(f"http://127.0.0.1:{found['server'].server_port}/metrics", timeout=20) as answer:
        served = answer.read()
    found["server"].shutdown()
    found["server"].server_close()
    assert b"tracehook_files_read 1.0" in served


def test_without_prometheus_client_the_collector_says_what_to_install(monkeypatch):
    """An ImportError names the extra."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'tracehook\[metrics\]'"):
        tracehook.metrics.collector("/run/tracehook")

"""Warnings and problems of a job as OpenTelemetry log records: what a receiver gets, and what happens without one."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.otlp import Received, Receiver, receiver, to
from support.processes import forked
from support.rehearsal import Rehearsal, rehearse

JOB = "named_groups.py"  # ranks 2 and 3 differ in what they register with group tp_1
SENDS = """
import time, sys
import torch
from tracehook.hook import telemetry
from tracehook.hook.service import service
telemetry._LOOKS_PATIENCE = telemetry._PATIENCE = 30.0  # seconds: what is sent arrives, also on a busy machine
service().push("pool.limit", 1 << 20, 4096)
"""


def play(log: Path | None, env: dict[str, str]) -> Rehearsal:
    """Run the job on four ranks."""
    return rehearse(JOB, "sizes", ranks=4, log=log, env={"SYMM_REGISTER_TIMEOUT": "30"} | env)


def of_job(received: Receiver) -> list[Received]:
    """Return the records of ranks."""
    return [one for one in received.records if "tracehook.rank" in one.attributes]


def test_ranks_that_disagree_are_told(tmp_path: Path) -> None:
    """Each rank that raises sends one record that names job, rank, communicator and group; other ranks send nothing."""
    before = time.time_ns()
    with receiver() as received:
        run = play(tmp_path, received.env | {"SYMM_REGISTER_JOB": "night 3"})
    run.assert_good()
    assert received.paths == {"/v1/logs"}
    found = of_job(received)
    assert sorted(one.attributes["tracehook.rank"] for one in found) == [2, 3], run.output
    (event,) = run.events("agreement.mismatch", 2)
    for one in found:
        assert one.event == "tracehook.agreement.mismatch"
        assert one.severity == "ERROR"
        assert one.body == f"The ranks of communicator {event['comm']} did not agree on windows"
        assert one.attributes["tracehook.event"] == "agreement.mismatch"
        assert one.attributes["tracehook.job"] == "night 3"
        assert one.attributes["tracehook.comm"] == event["comm"]
        assert one.attributes["tracehook.entries"] == event["entries"]
        assert before < one.time_ns < time.time_ns()
    begin = run.log(2).begin
    (resource,) = [one.resource for one in found if one.attributes["tracehook.rank"] == 2]
    assert resource["host.name"] == begin["host"]
    assert resource["process.pid"] == begin["pid"]
    assert resource["tracehook.torch"] == begin["torch"]
    assert resource["tracehook.version"] == begin["tracehook"]
    assert resource["service.name"] == "tracehook"


def test_a_group_is_named(tmp_path: Path) -> None:
    """A record has the group of its communicator, once the log knows it."""
    with receiver() as received:
        run = play(tmp_path, received.env)
    for one in of_job(received):
        rank = one.attributes["tracehook.rank"]
        named = {event["comm"]: event["group"] for event in run.events("communicator.group", rank)}
        assert one.attributes.get("tracehook.group") == named[one.attributes["tracehook.comm"]], run.output


def test_no_log_is_needed() -> None:
    """Without SYMM_REGISTER_LOG the records are sent all the same; the service's name is that of the environment."""
    with receiver() as received:
        run = play(None, received.env | {"SYMM_REGISTER_HOOK": "1", "OTEL_SERVICE_NAME": "trainer"})
    run.assert_good()
    assert [one.resource["service.name"] for one in of_job(received)] == ["trainer"] * 2


def test_a_process_without_warnings_sends_nothing(tmp_path: Path) -> None:
    """What happens in every job is of no concern."""
    with receiver() as received:
        rehearse("plain.py", log=tmp_path, env=received.env).assert_good()
    assert received.records == []


def test_an_exception_at_the_end_is_sent() -> None:
    """What ends the program is sent before the process ends."""
    with receiver() as received:
        done = forked(f"{SENDS}\nraise RuntimeError('no batch')", env=received.env | {"SYMM_REGISTER_HOOK": "1"})
    assert done.status == 1, done.output
    assert [one.event for one in received.records] == ["tracehook.pool.limit", "tracehook.python.exception"]
    assert received.records[1].attributes["tracehook.message"] == "no batch"


@pytest.mark.parametrize("way", ["dead", "hangs"])
def test_an_endpoint_that_takes_nothing_is_one_line(tmp_path: Path, way: str) -> None:
    """Where nobody listens, or nobody answers, each process that had something to say says one line, and ends."""
    if way == "dead":
        with socket.socket() as taken:  # held, so that nobody else gets the port
            taken.bind(("127.0.0.1", 0))
            run = play(tmp_path, to(taken.getsockname()[1]))
    else:
        with receiver(hangs=True) as received:
            run = play(tmp_path, received.env)
    run.assert_good()
    lines = run.finished.lines("OpenTelemetry")
    assert len(lines) == 2, run.output
    assert all(line.startswith("tracehook: OpenTelemetry: warnings are not sent (") for line in lines)
    assert run.finished.lines("opentelemetry") == [], run.output
    assert run.finished.lines("Traceback") == [], run.output


def test_an_endpoint_that_refuses_is_named_at_once() -> None:
    """A wrong path is answered with 404, and the line says so while the program runs."""
    with receiver() as received:
        env = received.env | {"SYMM_REGISTER_HOOK": "1", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://127.0.0.1:1/x"}
        env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "0.2"
        done = forked(f"{SENDS}\ntime.sleep(1.5)\nprint('ended', flush=True)", env=env)
    assert done.status == 0, done.output
    (line,) = done.lines("OpenTelemetry")
    assert "were still waiting" not in line, done.output


@pytest.mark.parametrize("name", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_a_missing_package_is_one_line(tmp_path: Path, name: str) -> None:
    """It says what to install; `import torch` and the job go on."""
    hides = f"import sys; sys.modules[{name!r}] = None\n{SENDS}\nprint('ended', flush=True)"
    done = forked(hides, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_OTEL": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (done.status, done.out) == (0, "ended\n"), done.output
    (line,) = done.lines("SYMM_REGISTER_OTEL")
    assert line.startswith("tracehook: SYMM_REGISTER_OTEL=1: warnings are not sent (")
    assert line.endswith("): pip install 'tracehook[otel]'")


def test_a_bad_variable_of_opentelemetry_is_one_line() -> None:
    """What its packages cannot read does not break `import torch`."""
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_OTEL": "1", "OTEL_ATTRIBUTE_COUNT_LIMIT": "few"}
    done = forked(f"{SENDS}\nprint('ended', flush=True)", env=env)
    assert (done.status, done.out) == (0, "ended\n"), done.output
    assert len(done.lines("tracehook: SYMM_REGISTER_OTEL=1: warnings are not sent")) == 1, done.output


PROVIDER = """
import torch  # so that the exit handler of the provider comes before that of tracehook
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
provider = LoggerProvider()
provider.add_log_record_processor(BatchLogRecordProcessor(ConsoleLogRecordExporter(
    formatter=lambda one: f"record {one.log_record.event_name} {one.instrumentation_scope.attributes['process.pid']}\\n"
)))
_logs.set_logger_provider(provider)
"""


def test_the_programs_own_provider_is_used() -> None:
    """It gets all records, also those that come last: its exit handler runs before tracehook's log ends."""
    with receiver() as received:
        code = f"{PROVIDER}\n{SENDS}\nimport os; print('pid', os.getpid(), flush=True)"
        done = forked(code, env=received.env | {"SYMM_REGISTER_HOOK": "1"})
    assert done.status == 0, done.output
    pid = done.out.split()[1]
    assert done.out.splitlines()[1:] == [f"record tracehook.pool.limit {pid}"], done.output
    assert received.records == []


def test_a_forked_child_ends(tmp_path: Path) -> None:
    """A child that was forked while records wait neither sends them nor waits for them; the parent's arrive."""
    code = f"""{SENDS}
import os
child = os.fork()
if not child:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    with receiver() as received:
        done = forked(code, env=received.env | {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (done.status, done.late) == (0, False), done.output
    assert [one.event for one in received.records] == ["tracehook.pool.limit"]


def test_a_forked_child_with_a_log_of_its_own_sends(tmp_path: Path) -> None:
    """A child that was forked before CUDA came up, and enables tracehook, is a process like any other."""
    code = f"""{SENDS}
import os, tracehook
child = os.fork()
if not child:
    tracehook.enable()
    service().push("pool.limit", 2, 4096)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("pids", os.getpid(), child, flush=True)
"""
    with receiver() as received:
        done = forked(code, env=received.env | {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (done.status, done.late) == (0, False), done.output
    pids = [int(number) for number in done.out.split()[1:]]
    assert sorted(one.resource["process.pid"] for one in received.records) == sorted(pids), done.output

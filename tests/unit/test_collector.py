"""The collector's configuration in `examples/monitoring`: its operators, applied to lines of logs as it documents them.

The parts of its language that the configuration has are written here in Python. Where `otelcol-contrib` is installed,
the collector itself looks at the file too.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.parted import Program, churn
from support.rehearsal import EXAMPLES, ROOT

from tracehook.log.bound import Bound
from tracehook.log.parts import Parts
from tracehook.log.reader import read_directory
from tracehook.log.tables import ABOUT, PROBLEMS, WARNINGS

FILE = EXAMPLES / "monitoring" / "otel-collector.yaml"
GOLDEN = ROOT / "tests" / "audit" / "golden"
CONFIG = yaml.safe_load(FILE.read_text(encoding="utf-8"))
RECEIVER = CONFIG["receivers"]["filelog"]
_FIELD = re.compile(r'(body|attributes|resource)(?:\.(\w+)|\["([^"]+)"\])?')
_LEVELS = {"warn": "WARN", "error": "ERROR"}


class Map(dict[str, Any]):
    """A map of the collector's expressions: a name that is not there is nil."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class _Date:
    """A moment of the collector's expressions."""

    def __init__(self, text: str) -> None:
        self._since = datetime.fromisoformat(text) - datetime.fromisoformat("1970-01-01T00:00:00+00:00")

    def UnixNano(self) -> int:
        return self._since // timedelta(microseconds=1) * 1000


@dataclass
class Record:
    """What goes through the operators."""

    body: Any
    attributes: Map = field(default_factory=Map)
    resource: Map = field(default_factory=Map)
    severity: str = ""
    time_ns: int = 0

    def place(self, name: str) -> tuple[Map, str]:
        """Return the map and the key that a field names."""
        found = _FIELD.fullmatch(name)
        assert found is not None, name
        return getattr(self, found[1]), found[2] or found[3]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression. Those of the file mean the same in Python."""
        names = {"body": self.body, "attributes": self.attributes, "resource": self.resource, "nil": None}
        return eval(expression, {"__builtins__": {}, "date": _Date}, names)

    def value(self, given: str) -> Any:
        """Return what an operator `add` adds."""
        found = re.fullmatch(r"EXPR\((.*)\)", given)
        return given if found is None else self.evaluate(found[1])


def apply(operators: list[dict[str, Any]], record: Record) -> Record | None:
    """Send a record through operators; None if one of them drops it. A key that is not known here is an error."""
    wanted = None  # where a router sends it
    for given in operators:
        operator = dict(given)
        kind, name = operator.pop("type"), operator.pop("id", None)
        if wanted not in (None, name):
            continue
        wanted = None
        if "if" in operator and not record.evaluate(operator.pop("if")):
            continue
        match kind, operator:
            case "json_parser", {"parse_ints": True, **how}:
                assert how in ({}, {"parse_to": "body", "on_error": "drop_quiet"})
                try:
                    parsed = Map(json.loads(record.body))
                except (ValueError, TypeError):  # no JSON, or no object
                    return None
                if how:
                    record.body = parsed
                else:
                    record.attributes.update(parsed)
            case "router", {"routes": routes}:
                taken = [route for route in routes if record.evaluate(route["expr"])]
                if not taken:
                    return None
                assert len(taken) == 1
                record.attributes.update(taken[0]["attributes"])
                wanted = taken[0]["output"]
            case "filter", {"expr": expression}:
                if record.evaluate(expression):
                    return None
            case "severity_parser", {"parse_from": source, "overwrite_text": True}:
                values, key = record.place(source)
                record.severity = _LEVELS[values[key]]
            case "time_parser", {"parse_from": source, "layout_type": "epoch", "layout": "ns"}:
                values, key = record.place(source)
                record.time_ns = values[key]
            case "add", {"field": target, "value": value}:
                values, key = record.place(target)
                values[key] = record.value(value)
            case "move", {"from": source, "to": target}:
                values, key = record.place(source)
                others, other = record.place(target)
                others[other] = values.pop(key)
            case "retain", {"fields": names}:
                kept = {record.place(name)[1] for name in names}
                assert {id(record.place(name)[0]) for name in names} == {id(record.attributes)}
                record.attributes = Map({key: value for key, value in record.attributes.items() if key in kept})
            case _:
                pytest.fail(f"an operator that this test does not know: {given}")
    assert wanted is None, f"no operator has the id {wanted}"
    return record


def collected(folder: Path) -> list[Record]:
    """Return what the collector makes of the logs in a folder."""
    (pattern,) = RECEIVER["include"]
    found = []
    for file in sorted(folder.iterdir()):
        if not fnmatch(f"/shared/logs/{file.name}", pattern.replace("**/", "")):
            continue
        header = Map({"log.file.name": file.name})
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]  # without a line that has no end
        while lines and re.match(RECEIVER["header"]["pattern"], lines[0]):
            told = apply(RECEIVER["header"]["metadata_operators"], Record(lines.pop(0)))
            assert told is not None
            header.update(told.attributes)
        for line in lines:
            record = Record(line, Map(header), Map(RECEIVER["resource"]))
            if (sent := apply(RECEIVER["operators"], record)) is not None:
                found.append(sent)
    return found


def test_a_problem_becomes_a_record() -> None:
    """With the severity, the moment, the process and the fields of the event."""
    records = collected(GOLDEN / "agreement-mismatch")
    logs = {log.begin["pid"]: log for log in read_directory(GOLDEN / "agreement-mismatch")}
    assert len(records) == len(logs)
    for record in records:
        log = logs[record.resource["process.pid"]]
        (event,) = (one for one in log.events if one["event"] == "agreement.mismatch")
        assert record.severity == "ERROR"
        assert record.body == event
        assert record.attributes == {"event.name": "tracehook.agreement.mismatch", "log.file.name": log.path.name}
        assert record.resource == {
            "service.name": "tracehook", "host.name": log.begin["host"], "process.pid": log.begin["pid"],
            "process.runtime.version": log.begin["python"], "tracehook.version": log.begin["tracehook"],
            "tracehook.torch": log.begin["torch"], "tracehook.nccl": log.begin["nccl"],
            "tracehook.rank": log.begin["rank"],
        } | ({"tracehook.job": log.begin["job"]} if log.begin["job"] else {})  # fmt: skip
        began = datetime.fromisoformat(log.begin["time"]).timestamp()
        later = (event["t_ns"] - log.begin["t_ns"]) / 1e9
        assert record.time_ns / 1e9 == pytest.approx(began + later, abs=1e-5)


@pytest.mark.parametrize("name", sorted(folder.name for folder in GOLDEN.iterdir() if any(folder.glob("*.jsonl"))))
def test_warnings_and_problems_of_logs_are_sent_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Of every recorded log, each once, under its severity. The collector knows no rings."""
    for file in (GOLDEN / name).glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    wanted = sorted(
        (event["event"], "WARN" if event["event"] in WARNINGS else "ERROR")
        for log in read_directory(tmp_path)
        for event in log.events
        if event["event"] in WARNINGS | PROBLEMS
    )
    assert sorted((record.body.event, record.severity) for record in collected(tmp_path)) == wanted


def test_the_file_names_every_warning_and_every_problem() -> None:
    """As the table of events has them, also those that no recorded log has."""
    (router,) = (operator for operator in RECEIVER["operators"] if operator["type"] == "router")
    named = {
        route["attributes"]["level"]: {name for name in ABOUT if Record(Map(event=name)).evaluate(route["expr"])}
        for route in router["routes"]
    }
    assert named == {"warn": WARNINGS, "error": PROBLEMS}
    quoted = re.findall(r'"([\w.]+)"', "".join(route["expr"] for route in router["routes"]))
    assert sorted(quoted) == sorted(WARNINGS | PROBLEMS)


def test_copies_in_parts_are_sent_once(tmp_path: Path) -> None:
    """A part repeats the newest warnings of the part before it, with a number or without."""
    program = Program(tmp_path, limit=64 << 20)
    for wanted in range(3):
        program.say("pool.limit", wanted=wanted, held=0)
        program.say_aside("log.dropped", count=wanted)
        churn(program, 40)
        program.parts.rotate()
    files = [file.read_text(encoding="utf-8") for file in tmp_path.glob("*.jsonl")]
    assert sum(text.count('"pool.limit"') for text in files) > 3
    told = [(record.body.event, record.body.wanted, record.body.count) for record in collected(tmp_path)]
    assert sorted(told, key=str) == sorted(
        [*(("pool.limit", n, None) for n in range(3)), *(("log.dropped", None, n) for n in range(3))], key=str
    )


def test_the_collector_knows_parts_apart(tmp_path: Path) -> None:
    """By their first bytes: those of two parts differ only at the end of the first line, which may be long."""
    parts = Parts(tmp_path / "job.rank0.h.7.jsonl", None, Bound(64 << 20))
    parts.begin({"event": "trace.begin", "schema": "1.14", "t_ns": 1, "argv": ["x" * 4000]})
    parts.rotate()
    size = int(RECEIVER["fingerprint_size"].removesuffix("KiB")) << 10
    first, second = (file.read_bytes()[:size] for file in sorted(tmp_path.glob("*.jsonl")))
    assert first[:4000] == second[:4000]
    assert not first.startswith(second)
    assert not second.startswith(first)


def test_the_collector_takes_the_file() -> None:
    """As it says itself."""
    collector = shutil.which("otelcol-contrib")
    if collector is None:
        pytest.skip("otelcol-contrib is not installed (github.com/open-telemetry/opentelemetry-collector-releases)")
    done = subprocess.run([collector, "validate", f"--config={FILE}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

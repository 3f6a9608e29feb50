"""What becomes an OpenTelemetry log record, and that whoever takes records slowly, or not at all, stops nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry._logs import SeverityNumber, _internal
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from tracehook.hook import telemetry
from tracehook.hook.telemetry import Telemetry

BEGIN = {
    "tracehook": "1",
    "torch": "2.11",
    "job": "night",
    "rank": 1,
    "host": "h",
    "attempt": None,
    "policy": ["shared"],
}


class Inner:
    """Hears what is heard beside it, and has one line."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, event: str, _: Mapping[str, Any]) -> None:
        """Take an event."""
        self.heard.append(event)

    def look(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the line."""
        return [("rank.known", {"rank": 3})]


class Slow(LogRecordProcessor):
    """Takes one record and keeps it until it may go on."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.took = 0

    def on_emit(self, _: ReadWriteLogRecord) -> None:
        """Take a record."""
        self.took += 1
        self.may_go.wait()

    def shutdown(self) -> None:
        """End."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing."""
        return timeout_millis > 0


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> LoggerProvider:
    """Return the LoggerProvider that the program has set up."""
    made = LoggerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(_internal, "_LOGGER_PROVIDER", made)
    return made


@pytest.fixture
def records(provider: LoggerProvider) -> InMemoryLogRecordExporter:
    """Return where the program's records go."""
    exporter = InMemoryLogRecordExporter()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    return exporter


@pytest.fixture
def slow(provider: LoggerProvider) -> Iterator[Slow]:
    """Return a processor of the program that does not come back."""
    made = Slow()
    provider.add_log_record_processor(made)
    yield made
    made.may_go.set()


def test_only_warnings_and_problems_become_records(records: InMemoryLogRecordExporter) -> None:
    """An info event is heard beside it, and is no record."""
    inner = Inner()
    made = Telemetry(BEGIN, inner)
    made.hear("segment.alloc", {"t_ns": 1, "addr": "0x1"})
    made.hear("register.stalled", {"t_ns": 1, "addr": "0x1", "comm": "ab"})
    made.hear("pool.limit", {"t_ns": 1, "wanted": 4, "held": 8})
    made.close()
    assert inner.heard == ["segment.alloc", "register.stalled", "pool.limit"]
    found = [one.log_record for one in records.get_finished_logs()]
    assert [(one.event_name, one.severity_number, one.severity_text) for one in found] == [
        ("tracehook.register.stalled", SeverityNumber.WARN, "WARN"),
        ("tracehook.pool.limit", SeverityNumber.ERROR, "ERROR"),
    ]
    assert found[0].body == "A window on 0x1 with communicator ab waits in NCCL for another rank"
    assert dict(found[1].attributes or {}) == {
        "tracehook.event": "pool.limit",
        "tracehook.job": "night",
        "tracehook.rank": 1,
        "tracehook.wanted": 4,
        "tracehook.held": 8,
    }


def test_the_programs_provider_has_the_facts_as_attributes_of_the_scope(records: InMemoryLogRecordExporter) -> None:
    """Its resource is the program's; what the log's first line says stands beside the scope's name."""
    made = Telemetry(BEGIN, Inner())
    made.hear("pool.limit", {"t_ns": 1})
    made.close()
    (record,) = records.get_finished_logs()
    scope = record.instrumentation_scope
    assert scope is not None
    assert scope.name == "tracehook"
    attributes = dict(scope.attributes or {})
    assert attributes.pop("tracehook.version")
    assert attributes == {
        "tracehook.torch": "2.11",
        "tracehook.job": "night",
        "tracehook.rank": 1,
        "host.name": "h",
        "tracehook.policy": ("shared",),
    }


def test_a_rank_that_becomes_known_is_told(records: InMemoryLogRecordExporter) -> None:
    """A process whose launcher said no rank has one in the records that follow."""
    made = Telemetry(BEGIN | {"rank": None}, Inner())
    made.hear("pool.limit", {"t_ns": 1})
    for event, fields in made.look():
        made.hear(event, fields)
    made.hear("pool.limit", {"t_ns": 1})
    made.close()
    ranks = [dict(one.log_record.attributes or {}).get("tracehook.rank") for one in records.get_finished_logs()]
    assert ranks == [None, 3]


def test_the_moment_is_that_of_the_event(records: InMemoryLogRecordExporter) -> None:
    """The log's clock does not count from 1970; the record's does."""
    made = Telemetry(BEGIN, Inner())
    made.hear("pool.limit", {"t_ns": time.monotonic_ns() - 3_600_000_000_000})
    made.close()
    (record,) = records.get_finished_logs()
    hours = (time.time_ns() - (record.log_record.timestamp or 0)) / 3_600_000_000_000
    assert round(hours, 2) == 1


@pytest.mark.parametrize(
    ("value", "told"),
    [(1 << 63, "9223372036854775808"), ([1, 2], (1, 2)), ([1, "a"], ("1", "a")), ({"a": 1}, "{'a': 1}"), (True, True)],
)
def test_a_value_that_opentelemetry_does_not_take_is_text(
    records: InMemoryLogRecordExporter, value: object, told: object
) -> None:
    """Numbers have 64 bits there, and lists one type."""
    made = Telemetry(BEGIN, Inner())
    made.hear("pool.limit", {"wanted": value})
    made.close()
    (record,) = records.get_finished_logs()
    assert dict(record.log_record.attributes or {})["tracehook.wanted"] == told


def test_who_takes_records_slowly_stops_nobody(
    slow: Slow, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The log's thread goes on, what is too much is left out, and the end waits for a bounded time and says so."""
    monkeypatch.setattr(telemetry, "_PATIENCE", 0.05)
    monkeypatch.setattr(telemetry, "_MOST", 5)
    made = Telemetry(BEGIN, Inner())
    made.hear("pool.limit", {})
    until(lambda: slow.took == 1)
    for _ in range(20):
        made.hear("pool.limit", {})
    made.close()
    assert slow.took == 1
    assert capsys.readouterr().err == (
        "tracehook: OpenTelemetry: warnings are not sent (21 of them were still waiting at the end of the process); "
        "the job goes on\n"
    )


def test_without_the_setting_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's thread hears of events as before."""
    monkeypatch.setattr(telemetry, "Telemetry", None)
    inner = Inner()
    assert telemetry.beside(inner, BEGIN, is_wanted=False) is inner


def test_an_exporter_that_raises_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Older ones do so where nobody listens; what OpenTelemetry itself logs of it stays off stderr."""

    def refuse(*_: object) -> None:
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(OTLPLogExporter, "export", refuse)
    made = Telemetry(BEGIN, Inner())
    for _ in range(3):
        made.hear("pool.limit", {})
    made.close()
    assert capsys.readouterr().err == (
        "tracehook: OpenTelemetry: warnings are not sent (ConnectionError: nobody listens); the job goes on\n"
    )

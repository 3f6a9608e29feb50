"""Warnings and problems of this process as OpenTelemetry log records (``SYMM_REGISTER_OTEL=1``).

The log's thread only puts them into a queue. A thread of its own gives them to the LoggerProvider that the program has
set up, or else to one made here, which sends them over HTTP. OpenTelemetry's Python package has its logs under names
with an underscore, because that part of its interface may still change.

All that is needed is imported, and made, when the service starts: a module that a thread imports while the program
forks stays locked in the child for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tracehook import __version__
from tracehook.hook import namer
from tracehook.log.aside import Aside
from tracehook.log.stderr import warn
from tracehook.log.tables import PROBLEMS, WARNINGS, said

_MOST = 1000  # records that wait to be sent
_PATIENCE = 3.0  # seconds for the records that wait when the process ends
_LOOKS_PATIENCE = 0.5  # seconds for the log's thread to see what came last
_MOST_REASON = 200  # characters
_RESOURCE = {"host": "host.name", "pid": "process.pid", "python": "process.runtime.version"}
_LARGEST = 1 << 63


class Telemetry:
    """Hears events beside `inner`, and sends those of the severities warning and problem.

    The log's thread calls :meth:`hear` and :meth:`look`, which never wait and never raise. A forked child must leave it
    alone: the thread is the parent's.
    """

    def __init__(self, begin: Mapping[str, Any], inner: Aside) -> None:
        """Import and make all that sending needs.

        Raises:
            ImportError: a package is missing.
            Exception: what a variable of OpenTelemetry says cannot be.

        """
        self._inner = inner
        self._facts = _facts(begin)
        self._common = {"tracehook.job": begin.get("job"), "tracehook.rank": begin.get("rank")}
        self._queue: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(_MOST)
        self._pid = os.getpid()
        self._looks = 0
        self._looked = threading.Condition()
        self._lost = 0
        self._is_told = False
        self._api = _Api.load()
        self._thread = threading.Thread(target=self._send, name="tracehook-telemetry", daemon=True)
        self._own = self._api.own_provider(self._facts, self._thread, self._failed)
        self._thread.start()
        # The program's own provider ends in an exit handler, and those run before ours, which stands there the longest.
        before_handlers = getattr(threading, "_register_atexit", None)
        if before_handlers is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends already
                before_handlers(self._before_exit_handlers)

    # --- on the log's thread ---

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event."""
        self._inner.hear(event, fields)
        if event == "rank.known":
            self._common = self._common | {"tracehook.rank": fields["rank"]}
        if event not in WARNINGS and event not in PROBLEMS:
            return
        group = namer.known(fields.get("comm_id", 0))
        about = self._common | {"tracehook.group": group.name if group is not None else None}
        about |= {f"tracehook.{name}": value for name, value in fields.items() if name != "t_ns"}
        wall = time.time_ns() - time.monotonic_ns() + fields.get("t_ns", time.monotonic_ns())
        record = {
            "timestamp": wall,
            "body": said({"event": event} | dict(fields)),
            "event_name": f"tracehook.{event}",
            "attributes": {"tracehook.event": event} | _attributes(about),
        }
        try:
            self._queue.put_nowait((event, record))
        except queue.Full:
            self._lost += 1

    def look(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return what `inner` has for the log."""
        with self._looked:
            self._looks += 1
            self._looked.notify_all()
        return self._inner.look()

    # --- on the thread that sends ---

    def _send(self) -> None:
        while True:
            event, record = self._queue.get()
            try:
                logger = self._api.logger_of_program(self._facts) or self._own
                logger.emit(**record, **self._api.severity(event in WARNINGS))
            except Exception as problem:  # of the program's own provider
                self._failed(f"{type(problem).__name__}: {problem}")
            finally:
                self._queue.task_done()

    def _failed(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            warn(f"OpenTelemetry: warnings are not sent ({' '.join(reason.split())[:_MOST_REASON]}); the job goes on")

    # --- at the end ---

    def _before_exit_handlers(self) -> None:
        if os.getpid() != self._pid or self._api.logger_of_program(self._facts) is None:
            return
        with self._looked:
            wanted = self._looks + 2  # the next one may have read the ring already
            self._looked.wait_for(lambda: self._looks >= wanted, _LOOKS_PATIENCE)
        self._wait()

    def close(self) -> None:
        """Wait, at most for some seconds, until all is sent; say if it is not."""
        if os.getpid() != self._pid:
            return
        left = self._lost + (0 if self._wait() else self._queue.unfinished_tasks)
        if left:
            self._failed(f"{left} of them were still waiting at the end of the process")

    def _wait(self) -> bool:
        with self._queue.all_tasks_done:
            return self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, _PATIENCE)


class _Api(NamedTuple):
    """The parts of OpenTelemetry's packages that are used."""

    api: Any  # opentelemetry._logs
    sdk: Any  # opentelemetry.sdk._logs
    export: Any  # opentelemetry.sdk._logs.export
    resources: Any
    otlp: Any

    @classmethod
    def load(cls) -> _Api:
        """Import them."""
        from opentelemetry import _logs as api
        from opentelemetry.exporter.otlp.proto.http import _log_exporter as otlp
        from opentelemetry.sdk import _logs as sdk
        from opentelemetry.sdk import resources
        from opentelemetry.sdk._logs import export

        return cls(api, sdk, export, resources, otlp)

    def severity(self, is_warning: bool) -> dict[str, Any]:
        """Return what a record says of its severity."""
        level = self.api.SeverityNumber.WARN if is_warning else self.api.SeverityNumber.ERROR
        return {"severity_number": level, "severity_text": "WARN" if is_warning else "ERROR"}

    def logger_of_program(self, facts: dict[str, Any]) -> Any:
        """Return a logger of the provider that the program has set up; None if there is none."""
        provider = self.api.get_logger_provider()
        if type(provider).__name__ == "ProxyLoggerProvider":  # what stands there before
            return None
        return provider.get_logger("tracehook", __version__, attributes=facts)

    def own_provider(self, facts: dict[str, Any], thread: threading.Thread, failed: Any) -> Any:
        """Return a logger that sends each record at once, on `thread`, and calls `failed` with the reason."""
        resource = self.resources.Resource.create(facts)
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(self.resources.Resource({"service.name": "tracehook"}))
        # No exit handler of its own: it would wait for an endpoint that is dead.
        provider = self.sdk.LoggerProvider(resource=resource, shutdown_on_exit=False)
        complaints = _Complaints(thread)
        for module in (self.otlp.__name__, "opentelemetry.sdk._logs._internal.export"):
            logging.getLogger(module).addFilter(complaints)
        sender = _Sender(self.otlp.OTLPLogExporter(), complaints, failed)
        provider.add_log_record_processor(self.export.SimpleLogRecordProcessor(sender))
        return provider.get_logger("tracehook", __version__)


class _Complaints(logging.Filter):
    """Keeps what the exporter says on one thread, and off stderr: it says each attempt."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._thread = thread
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep a line of that thread; let all others pass."""
        if threading.current_thread() is not self._thread:
            return True
        self.last = record.getMessage()
        return False


class _Sender:
    """An exporter that tells of its failures."""

    def __init__(self, exporter: Any, complaints: _Complaints, failed: Any) -> None:
        self._exporter = exporter
        self._complaints = complaints
        self._failed = failed

    def export(self, batch: Any) -> Any:
        """Send records."""
        try:
            result = self._exporter.export(batch)
        except Exception as problem:  # from older exporters, of an endpoint that is dead
            self._failed(f"{type(problem).__name__}: {problem}")
            raise
        if result.name != "SUCCESS":  # the enumeration has had two names
            self._failed(self._complaints.last or "the endpoint takes none")
        return result

    def shutdown(self) -> None:
        """End."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing: nothing waits here."""
        return bool(self._exporter.force_flush(timeout_millis))


def _facts(begin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log's first line says, as attributes of a resource."""
    named = {_RESOURCE.get(name, f"tracehook.{name}"): value for name, value in begin.items() if name != "tracehook"}
    return {"tracehook.version": __version__} | _attributes(named)


def _attributes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as values that OpenTelemetry takes, without those that say nothing."""
    return {name: _value(value) for name, value in fields.items() if value not in (None, "", [])}


def _value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        kinds = {type(each) for each in value}
        return tuple(value if len(kinds) == 1 and kinds <= {int, str, float, bool} else map(str, value))
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class _Running:
    """The one of this process."""

    telemetry: Telemetry | None = None


def beside(inner: Aside, begin: Mapping[str, Any], is_wanted: bool) -> Aside:
    """Return what also sends warnings; `inner` alone if that is not wanted, or, with one line on stderr, cannot be."""
    _Running.telemetry = None
    if not is_wanted:
        return inner
    try:
        _Running.telemetry = Telemetry(begin, inner)
    except ImportError as missing:
        warn(f"SYMM_REGISTER_OTEL=1: warnings are not sent ({missing}): pip install 'tracehook[otel]'")
    except Exception as problem:
        warn(f"SYMM_REGISTER_OTEL=1: warnings are not sent ({type(problem).__name__}: {problem})")
    return _Running.telemetry or inner


def close() -> None:
    """At interpreter exit, after the log's end."""
    if _Running.telemetry is not None:
        _Running.telemetry.close()

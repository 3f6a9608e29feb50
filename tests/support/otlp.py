"""A receiver of OpenTelemetry's log records on loopback: it parses what is sent to it over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse


@dataclass(frozen=True)
class Received:
    """One record, with the attributes of its resource."""

    event: str
    severity: str
    body: str
    time_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Receiver:
    """What came so far. While it `hangs`, it answers nobody."""

    port: int = 0
    records: list[Received] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    hangs: threading.Event | None = None

    @property
    def env(self) -> dict[str, str]:
        """The variables with which a process sends its records here."""
        return to(self.port)

    def take(self, data: bytes) -> None:
        """Take one request."""
        request = ExportLogsServiceRequest.FromString(data)
        for of_resource in request.resource_logs:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_logs:
                self.records.extend(
                    Received(
                        event=record.event_name,
                        severity=record.severity_text,
                        body=record.body.string_value,
                        time_ns=record.time_unix_nano,
                        attributes=_values(record.attributes),
                        resource=resource,
                    )
                    for record in of_scope.log_records
                )


def to(port: int) -> dict[str, str]:
    """Return the variables with which a process sends its records to a port of this host."""
    return {
        "SYMM_REGISTER_OTEL": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def receiver(hangs: bool = False) -> Iterator[Receiver]:
    """Receive records while the `with` statement lasts."""
    received = Receiver(hangs=threading.Event() if hangs else None)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if received.hangs is not None:
                received.hangs.wait()
                return
            received.paths.add(self.path)
            received.take(data)
            answer = ExportLogsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield received
    finally:
        if received.hangs is not None:
            received.hangs.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)

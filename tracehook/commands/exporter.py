"""``tracehook exporter``: the metrics of a job over HTTP, from its files."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Annotated, Never

import typer

PORT = 9427


def exporter(
    directory: Annotated[
        Path, typer.Argument(help="The directory that SYMM_REGISTER_METRICS named. It may not exist yet.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free port.")] = PORT,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on: 0.0.0.0 lets other hosts read the metrics, without a password."),
    ] = "127.0.0.1",
) -> None:
    """Serve the metrics of all processes with a file in a directory, for Prometheus, until Control-C.

    It reads the files at each request.
    Exit status 2 if it cannot listen there.
    """
    try:
        from prometheus_client import start_http_server
    except ImportError:
        _refuse("needs prometheus_client: pip install 'tracehook[metrics]'")
    from tracehook.metrics.merged import Merged

    if directory.exists() and not directory.is_dir():
        _refuse(f"{directory}: expected a directory, this is a file")
    try:
        server, _ = start_http_server(port, host, Merged(directory))
    except (OSError, OverflowError) as problem:
        _refuse(f"cannot listen on {host}:{port}: {getattr(problem, 'strerror', None) or problem}")
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"tracehook exporter: {directory} at http://{shown}:{server.server_port}/metrics")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with contextlib.suppress(KeyboardInterrupt):
        ended.wait()
    server.shutdown()


def _refuse(text: str) -> Never:
    typer.echo(f"tracehook exporter: {text}", err=True)
    raise typer.Exit(2)

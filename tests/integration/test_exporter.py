"""``tracehook exporter``: what it serves, where it listens, and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("prometheus_client")

from support.processes import SCRIPTS, environment
from support.rehearsal import EXAMPLES

from tracehook.commands import app
from tracehook.metrics.table import COMMON, METRICS

MONITORING = EXAMPLES / "monitoring"
FILE = """# HELP tracehook_segments Segments.
# TYPE tracehook_segments gauge
tracehook_segments{{job_id="j",rank="{rank}",host="h",pid="1"}} 3.0
"""


@contextmanager
def served(directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command on a free port; yield its address and the process."""
    command = [SCRIPTS / "tracehook", "exporter", str(directory), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" at ")[1].strip(), process
        finally:
            process.kill()


def read(address: str) -> str:
    """Return what is served."""
    assert address.startswith("http://127.0.0.1:"), "loopback unless asked otherwise"
    with urllib.request.urlopen(address, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_it_serves_the_files_as_they_are_now(tmp_path: Path) -> None:
    """A directory that comes later, and files that come and go, show at the next request. SIGTERM ends it in order."""
    directory = tmp_path / "metrics"
    with served(directory) as (address, process):
        assert "tracehook_files_read 0.0" in read(address)
        directory.mkdir()
        for rank in range(2):
            (directory / f"tracehook.j.rank{rank}.h.1.prom").write_text(FILE.format(rank=rank))
        found = read(address)
        assert found.count("# TYPE tracehook_segments gauge") == 1
        assert found.count("tracehook_segments{") == 2
        next(directory.iterdir()).unlink()
        assert "tracehook_files_read 1.0" in read(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """One line says where it cannot listen, and why; status 2."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = CliRunner().invoke(app, ["exporter", str(tmp_path), "--port", str(port)])
    assert done.exit_code == 2
    assert done.stderr == f"tracehook exporter: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_file_for_a_directory(tmp_path: Path) -> None:
    """One line names it; status 2."""
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["exporter", str(tmp_path / "file")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "expected a directory" in done.stderr


# --- examples/monitoring ---


def _known(expression: str) -> None:
    """Fail if an expression has a metric of tracehook that does not exist."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in expression).split()
    for word in words:
        if word.startswith("tracehook_"):
            assert word in METRICS, expression


def test_the_dashboard_has_metrics_and_labels_that_exist() -> None:
    """Every panel has a query; each metric in it is in the table, and each label of a legend belongs to it."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            _known(target["expr"])
            names = [name for name in METRICS if name in target["expr"]]
            labels = {label for name in names for label in (*COMMON, *METRICS[name].labels)}
            legend = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            assert legend <= labels, panel["title"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_page_names_every_alert() -> None:
    """And no other; the rules have only metrics that exist."""
    rules = (MONITORING / "alerts.yml").read_text()
    page = (EXAMPLES.parent / "docs" / "metrics.md").read_text()
    alerts = [line.partition("alert: ")[2] for line in rules.splitlines() if "alert: " in line]
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `Tracehook")] == alerts
    _known(rules)


@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"]
)
def test_promtool_takes_the_configuration_and_the_alerts(command: str) -> None:
    """Each alert fires when it should, and only then (alerts_test.yml)."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([promtool, *command.split()], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""The examples of dashboards and alerts name only metrics that exist."""

import json
import shutil
import subprocess

import pytest
from support.rehearsal import EXAMPLES

from tracehook.metrics.table import COMMON, METRICS

MONITORING = EXAMPLES / "monitoring"


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
    page = (EXAMPLES.parent / "docs" / "operations.md").read_text()
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

"""The metrics of this process for a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tracehook.metrics.own import Own
from tracehook.metrics.table import COMMON, METRICS


class Collected(Collector):
    """Asks at each collection."""

    def __init__(self, own: Own) -> None:
        self._own = own

    def describe(self) -> list[Metric]:
        """Return nothing, so that to register the collector does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what there is now."""
        for metric, samples in self._own.series().items():
            about = METRICS[metric]
            kind = CounterMetricFamily if about.kind == "counter" else GaugeMetricFamily
            family = kind(metric, about.help, labels=(*COMMON, *about.labels))
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family

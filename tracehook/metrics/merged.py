"""The metrics of all processes that have a file in a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_LARGEST = 4 << 20  # bytes of a file; one of ours has less than a tenth of it
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Merged(Collector):
    """Reads the files at each collection. What is no file of metrics is counted, and left out as a whole."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def describe(self) -> list[Metric]:
        """Return nothing, so that to register the collector does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all files, each metric once."""
        found: dict[str, Metric] = {}
        read = unreadable = 0
        for path in self._files():
            try:
                metrics = list(text_string_to_metric_families(_text(path)))
            except FileNotFoundError:
                continue  # removed just now
            except (OSError, ValueError):
                unreadable += 1
                continue
            read += 1
            for metric in metrics:
                if metric.name in found:
                    found[metric.name].samples.extend(metric.samples)
                else:
                    found[metric.name] = metric
        yield from found.values()
        yield GaugeMetricFamily("tracehook_files_read", "Files of metrics that were read.", read)
        yield GaugeMetricFamily("tracehook_files_unreadable", "Files that hold no metrics.", unreadable)

    def _files(self) -> list[Path]:
        try:
            return sorted(self._directory.glob("tracehook.*.prom"))
        except OSError:
            return []


def _text(path: Path) -> str:
    """Return what a file holds. Raises ValueError for what is no regular file, or far too large."""
    descriptor = os.open(path, _OPEN)  # a pipe must not wait for a writer
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST:
            raise ValueError(f"{path}: no file of metrics")
        return file.read(_LARGEST).decode()

"""Numbers of a process for Prometheus; see docs/operations.md.

Loaded only if metrics are asked for: ``import tracehook`` does not load it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

__all__ = ["collector"]


def collector(directory: str | os.PathLike[str]) -> Collector:
    """Return a collector to register with a registry of ``prometheus_client``, or to serve by itself.

    Args:
        directory: the one that ``SYMM_REGISTER_METRICS`` named; it may not exist yet. The collector has the metrics of
            all processes with a file there, as they stand in the files at each collection.

    Returns:
        a collector. Names, labels and units of its metrics: docs/operations.md.

    Raises:
        ImportError: prometheus_client is not installed.

    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ImportError("tracehook.metrics needs prometheus_client: pip install 'tracehook[metrics]'") from None
    from tracehook.metrics.merged import Merged

    return Merged(Path(directory))

"""Numbers of a process for Prometheus; see docs/metrics.md.

Loaded only if metrics are asked for: ``import tracehook`` does not load it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

__all__ = ["collector"]


def collector(directory: str | os.PathLike[str] | None = None) -> Collector:
    """Return a collector to register with a registry of ``prometheus_client``.

    Args:
        directory: None: the collector has the metrics of this process. It counts events from this call on, or from the
            start of tracehook if that comes later. A directory that ``SYMM_REGISTER_METRICS`` named: it has the metrics
            of all processes with a file there, as in that file. Use this in a server whose workers are other
            processes.

    Returns:
        a collector. Names, labels and units of its metrics: docs/metrics.md.

    Raises:
        ImportError: prometheus_client is not installed.

    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ImportError("tracehook.metrics needs prometheus_client: pip install 'tracehook[metrics]'") from None
    if directory is not None:
        from tracehook.metrics.merged import Merged

        return Merged(Path(directory))
    from tracehook.metrics.collected import Collected
    from tracehook.metrics.follow import follow
    from tracehook.metrics.own import Own

    return Collected(Own(follow().seen))

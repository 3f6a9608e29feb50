"""A bounded number of series, each with the labels of its process, as the text that Prometheus reads.

This text and not prometheus_client's: that package decides when it is imported whether its own counters are shared by
several processes, and servers import it late for this reason. A job in which tracehook imports it early would spoil
their metrics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracehook.log.text import encodable
from tracehook.metrics.readings import Reading
from tracehook.metrics.table import COMMON, METRICS

MOST = 1000  # series of a process
_LONGEST = 200  # characters of a label's value
_LEFT_OUT = "tracehook_series_left_out"
_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Series = Mapping[str, Sequence[tuple[tuple[str, ...], float]]]
"""By metric: the values of all labels, the common ones first, and the value."""


class Bounded:
    """Gives each series a place while there are any. What got one keeps it: a counter must not come and go."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._admitted: set[tuple[str, tuple[str, ...]]] = set()

    def of(self, readings: Iterable[Reading], common: Sequence[str]) -> Series:
        """Return the series by metric. `common`: values of the labels that all of them have."""
        shared = _values(common)
        found: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        left_out: Counter[str] = Counter()
        for metric, labels, value in readings:
            if self._admits(metric, labels):
                found[metric].append((shared + _values(labels), float(value)))
            else:
                left_out[metric] += 1
        # Above the limit, because there are never more of these than metrics.
        for metric, count in left_out.items():
            found[_LEFT_OUT].append(((*shared, metric), float(count)))
        return {metric: found[metric] for metric in METRICS if metric in found}

    def _admits(self, metric: str, labels: tuple[str, ...]) -> bool:
        key = (metric, labels)
        if key not in self._admitted:
            if len(self._admitted) >= self._most:
                return False
            self._admitted.add(key)
        return True


def text(series: Series) -> bytes:
    """Return the series in Prometheus' text format."""
    return "".join(_lines(series)).encode()


def _lines(series: Series) -> Iterator[str]:
    for metric, samples in series.items():
        about = METRICS[metric]
        yield f"# HELP {metric} {about.help}\n# TYPE {metric} {about.kind}\n"
        names = (*COMMON, *about.labels)
        for labels, value in samples:
            pairs = (f'{name}="{label.translate(_LABEL)}"' for name, label in zip(names, labels, strict=True))
            yield f"{metric}{{{','.join(pairs)}}} {value!r}\n"


def _values(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(encodable(label)[:_LONGEST] for label in labels)

"""Which ranks differ: each measure of the job over all places, and the places that lie far from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracehook.audit.store import Store
from tracehook.log.text import in_bytes
from tracehook.views.report.phrases import file_text, in_time
from tracehook.views.report.series import Place

_MOST_OUTLIERS = 6
_COUNT = "{:,.0f}".format
_MEASURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("held", "held by PyTorch's allocator, at most", in_bytes),
    ("missing", "not registered though a communicator lived, at most", in_bytes),
    ("in_windows", "in windows, at most", in_bytes),
    ("pool", "held by our pools, at most", in_bytes),
    ("idle", "idle in the bank, at most", in_bytes),
    ("communicators", "communicators", _COUNT),
    ("made", "registrations made", _COUNT),
    ("failed", "registrations or their undoing failed", _COUNT),
    ("us", "time in NCCL for registrations", in_time),
    ("slowest", "slowest of these calls", in_time),
    ("events", "events", _COUNT),
    ("lasted", "from first to last event", in_time),
)


@dataclass
class Measure:
    """One measure, in words: lowest, median and highest, and the places far from the others."""

    name: str
    low: str
    mid: str
    high: str
    far: list[tuple[int, str, str]]
    more: int


def read_spread(store: Store, places: Sequence[Place]) -> list[Measure]:
    """Measure all places; leave out what is zero everywhere."""
    found = {row["measure"]: row for row in store.rows(file_text("spread.sql"))}
    measures = []
    for key, name, say in _MEASURES:
        row = found.get(key)
        if row is None or not (row["high"] or row["low"]):
            continue
        far = row["far"] or [] if len(places) > 2 else []
        named = [(one["place"], places[one["place"]].name, say(one["value"])) for one in far[:_MOST_OUTLIERS]]
        measures.append(Measure(name, say(row["low"]), say(row["mid"]), say(row["high"]), named, len(far) - len(named)))
    return measures

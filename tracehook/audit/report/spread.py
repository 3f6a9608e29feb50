"""Which ranks differ: each measure of the job over all places, and the places that lie far from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracehook.audit.report.series import Place
from tracehook.audit.report.words import in_bytes, in_time
from tracehook.audit.store import Store

_MOST_OUTLIERS = 6

_MEASURES = """
WITH peak AS (
    SELECT place, series, max(level) AS level FROM change GROUP BY ALL),
spent AS (
    SELECT place, sum(us) AS us, max(us) FILTER (event != 'register.batch') AS slowest,
           count(*) FILTER (verb = 'register' AND event != 'register.batch' AND ok) AS made,
           count(*) FILTER (NOT ok) AS failed
    FROM call JOIN place USING (process, device) GROUP BY place),
measure AS (
    SELECT place, said AS events, coalesce(us, 0) AS us, coalesce(slowest, 0) AS slowest, coalesce(made, 0) AS made,
           coalesce(failed, 0) AS failed,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'held'), 0) AS held,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'window'), 0) AS in_windows,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'pool'), 0) AS pool,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'idle'), 0) AS idle,
           coalesce((SELECT max(missing) FROM reading WHERE reading.place = place.place), 0) AS missing,
           (last_ns - first_ns) / 1000 AS lasted,
           (SELECT count(*) FROM communicator c WHERE c.process = place.process AND c.device = place.device) AS communicators
    FROM place LEFT JOIN spent USING (place)),
long AS (UNPIVOT (SELECT place, COLUMNS(* EXCLUDE (place))::DOUBLE FROM measure) ON COLUMNS(* EXCLUDE (place)) INTO NAME measure VALUE value),
middle AS (SELECT measure, median(value) AS mid, min(value) AS low, max(value) AS high FROM long GROUP BY measure),
width AS (SELECT measure, median(abs(value - mid)) AS mad FROM long JOIN middle USING (measure) GROUP BY measure)
-- Far: six times the usual distance from the median, and at least a tenth of the median.
SELECT measure, any_value(mid) AS mid, any_value(low) AS low, any_value(high) AS high,
       list({'place': place, 'value': value} ORDER BY abs(value - mid) DESC, place)
           FILTER (abs(value - mid) > greatest(6 * mad, 0.1 * abs(mid))) AS far
FROM long JOIN middle USING (measure) JOIN width USING (measure) GROUP BY measure
"""


def _count(value: float) -> str:
    return f"{value:,.0f}"


_SAID: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("held", "held by PyTorch's allocator, at most", in_bytes),
    ("missing", "not registered though a communicator lived, at most", in_bytes),
    ("in_windows", "in windows, at most", in_bytes),
    ("pool", "held by our pools, at most", in_bytes),
    ("idle", "idle in the bank, at most", in_bytes),
    ("communicators", "communicators", _count),
    ("made", "registrations made", _count),
    ("failed", "registrations or their undoing failed", _count),
    ("us", "time in NCCL for registrations", in_time),
    ("slowest", "slowest of these calls", in_time),
    ("events", "events", _count),
    ("lasted", "from first to last event", in_time),
)


@dataclass
class Row:
    """One measure, in words: lowest, median and highest, and the places far from the others."""

    measure: str
    low: str
    mid: str
    high: str
    far: list[tuple[int, str, str]]
    more: int


def read_spread(store: Store, places: Sequence[Place]) -> list[Row]:
    """Measure all places; leave out what is zero everywhere."""
    found = {row["measure"]: row for row in store.rows(_MEASURES)}
    rows = []
    for key, measure, say in _SAID:
        row = found.get(key)
        if row is None or not (row["high"] or row["low"]):
            continue
        far = row["far"] or [] if len(places) > 2 else []
        named = [(one["place"], places[one["place"]].name, say(one["value"])) for one in far[:_MOST_OUTLIERS]]
        rows.append(Row(measure, say(row["low"]), say(row["mid"]), say(row["high"]), named, len(far) - len(named)))
    return rows

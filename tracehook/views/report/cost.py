"""What registrations cost: the time in NCCL, per communicator and kind, over all its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracehook.audit.store import Store
from tracehook.views.report.phrases import in_time, short

_MOST_ROWS = 16
_MOST_NAMED = 10_000

_MEASURE = """
CREATE OR REPLACE TEMP TABLE priced AS
SELECT call.*, size FROM call
LEFT JOIN (SELECT comm, max(ranks) AS size FROM communicator GROUP BY comm) USING (comm) WHERE comm IS NOT NULL
"""

# A row a communicator, or a size of communicators, and kind of registration.
_BY = """
SELECT * FROM (
    SELECT {key}, kind, count(DISTINCT comm) AS comms, count(DISTINCT process) AS ranks,
           coalesce(sum(us) FILTER (verb = 'register'), 0) AS register_us,
           coalesce(sum(us) FILTER (verb = 'deregister'), 0) AS deregister_us,
           count(*) FILTER (verb = 'register' AND event != 'register.batch' AND ok) AS made,
           count(*) FILTER (NOT ok) AS failed, coalesce(sum(batched), 0)::DOUBLE AS batched,
           max(us) FILTER (event = 'register.batch') AS batch_us,
           median(us) FILTER (verb = 'register' AND event != 'register.batch') AS mid_us,
           quantile_cont(us, 0.99) FILTER (verb = 'register' AND event != 'register.batch') AS p99_us,
           max(us) FILTER (verb = 'register' AND event != 'register.batch') AS max_us
    FROM priced GROUP BY {key}, kind) AS total
JOIN (
    SELECT {key} AS of, kind, median(us) AS mid, min(us) AS low, max(us) AS high, arg_max(rank, us) AS slowest_rank
    FROM (SELECT {key}, kind, process, sum(us) AS us FROM priced GROUP BY ALL) JOIN process USING (process)
    GROUP BY {key}, kind) AS spread
ON total.{key} IS NOT DISTINCT FROM spread.of AND total.kind = spread.kind
"""
_SLOWEST_FIRST = f"ORDER BY high DESC NULLS LAST, made DESC LIMIT {_MOST_ROWS}"


@dataclass
class Cost:
    """One kind of registration of one communicator, in words."""

    name: str
    key: str
    kind: str
    ranks: int
    cells: list[str]


def name_communicators(store: Store) -> dict[str, str]:
    """Return a short name for each key: c1, with the group's name, for the communicator that was found first."""
    rows = store.rows(
        f"""SELECT comm, row_number() OVER (ORDER BY min(found_ns) NULLS LAST, comm) AS number, any_value(name) AS label
            FROM communicator LEFT JOIN communicator_group USING (comm)
            WHERE comm IS NOT NULL GROUP BY comm ORDER BY number LIMIT {_MOST_NAMED}"""
    )
    return {row["comm"]: f"c{row['number']} {short(row['label'] or '', 20)}".rstrip() for row in rows}


def read_cost(store: Store, names: dict[str, str]) -> tuple[list[Cost], dict[str, Any], int]:
    """Return the table's rows, the picture's data, and how many rows were left out: those that took least time.

    If there are many communicators, those of equal size come first, as one row a size.
    """
    store.rows(_MEASURE)
    rows = store.rows(f"SELECT *, count(*) OVER () AS all_rows FROM ({_BY.format(key='comm')}) {_SLOWEST_FIRST}")
    more = rows[0]["all_rows"] - len(rows) if rows else 0
    grouped = store.rows(f"{_BY.format(key='size')} {_SLOWEST_FIRST}") if more else []
    shown = [_cost(row, _of_size(row), "") for row in grouped]
    shown += [_cost(row, names.get(row["comm"], "c?"), short(row["comm"], 20)) for row in rows]
    told = grouped + rows
    picture = {
        "names": [row.name for row in shown],
        "kinds": [row.kind for row in shown],
        **{key: [_milliseconds(row[key]) for row in told] for key in ("low", "mid", "high")},
        "slowest": ["" if row["slowest_rank"] is None else f"rank {row['slowest_rank']}" for row in told],
    }
    return shown, picture, more


def _of_size(row: dict[str, Any]) -> str:
    all_of_them = "the one" if row["comms"] == 1 else f"all {row['comms']}"
    return f"{all_of_them} of {'?' if row['size'] is None else row['size']} ranks"


def _cost(row: dict[str, Any], name: str, key: str) -> Cost:
    batched = f" ({row['batched']:,.0f} in batches)" if row["batched"] else ""
    failed = f", {row['failed']:,} failed" if row["failed"] else ""
    slowest = "" if row["slowest_rank"] is None or row["ranks"] < 2 else f" (rank {row['slowest_rank']})"
    cells = [
        f"{row['made']:,}{batched}{failed}",
        in_time(row["register_us"]),
        *(in_time(row[column]) for column in ("mid_us", "p99_us", "max_us", "batch_us")),
        in_time(row["deregister_us"]),
        in_time(row["high"]) + slowest,
    ]
    return Cost(name, key, row["kind"], row["ranks"], cells)


def _milliseconds(us: float | None) -> float:
    return round((us or 0) / 1000, 4)

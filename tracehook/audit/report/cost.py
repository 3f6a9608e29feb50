"""What registrations cost: the time in NCCL, per communicator and kind, over all its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracehook.audit.report.words import in_time, short
from tracehook.audit.store import Store

_MOST_ROWS = 24
_MOST_NAMED = 10_000


@dataclass
class Row:
    """One kind of registration of one communicator, in words."""

    name: str
    key: str
    kind: str
    ranks: int
    cells: list[str]


def name_communicators(store: Store) -> dict[str, str]:
    """Return a short name for each key: c1 for the communicator that was found first."""
    rows = store.rows(
        f"""SELECT comm, row_number() OVER (ORDER BY min(found_ns) NULLS LAST, comm) AS number
            FROM communicator WHERE comm IS NOT NULL GROUP BY comm ORDER BY number LIMIT {_MOST_NAMED}"""
    )
    return {row["comm"]: f"c{row['number']}" for row in rows}


def read_cost(store: Store, names: dict[str, str]) -> tuple[list[Row], dict[str, Any], int]:
    """Return the table's rows, the picture's data, and how many rows were left out: those that took least time."""
    rows = store.rows(
        f"""
        WITH of_rank AS (
            SELECT comm, kind, process, sum(us) AS us FROM call WHERE comm IS NOT NULL GROUP BY ALL),
        spread AS (
            SELECT comm, kind, count(*) AS ranks, median(us) AS mid, min(us) AS low, max(us) AS high,
                   arg_max(process, us) AS slowest
            FROM of_rank GROUP BY ALL),
        total AS (
            SELECT comm, kind, coalesce(sum(us) FILTER (verb = 'register'), 0) AS register_us,
                   coalesce(sum(us) FILTER (verb = 'deregister'), 0) AS deregister_us,
                   count(*) FILTER (verb = 'register' AND event != 'register.batch' AND ok) AS made,
                   count(*) FILTER (NOT ok) AS failed, coalesce(sum(batched), 0)::DOUBLE AS batched,
                   max(us) FILTER (event = 'register.batch') AS batch_us,
                   median(us) FILTER (verb = 'register' AND event != 'register.batch') AS mid_us,
                   quantile_cont(us, 0.99) FILTER (verb = 'register' AND event != 'register.batch') AS p99_us,
                   max(us) FILTER (verb = 'register' AND event != 'register.batch') AS max_us
            FROM call WHERE comm IS NOT NULL GROUP BY ALL)
        SELECT *, (SELECT rank FROM process WHERE process = slowest) AS slowest_rank, count(*) OVER () AS all_rows
        FROM total JOIN spread USING (comm, kind) ORDER BY high DESC NULLS LAST, comm, kind LIMIT {_MOST_ROWS}"""
    )
    shown = [_row(row, names) for row in rows]
    picture = {
        "names": [row.name for row in shown],
        "kinds": [row.kind for row in shown],
        **{key: [_milliseconds(row[key]) for row in rows] for key in ("low", "mid", "high")},
        "slowest": ["" if row["slowest_rank"] is None else f"rank {row['slowest_rank']}" for row in rows],
    }
    return shown, picture, rows[0]["all_rows"] - len(rows) if rows else 0


def _row(row: dict[str, Any], names: dict[str, str]) -> Row:
    batched = f" ({row['batched']:,.0f} in batches)" if row["batched"] else ""
    failed = f", {row['failed']:,} failed" if row["failed"] else ""
    slowest = "" if row["slowest_rank"] is None or row["ranks"] < 2 else f" (rank {row['slowest_rank']})"
    cells = [
        f"{row['made']:,}{batched}{failed}",
        in_time(row["register_us"]),
        *(in_time(row[name]) for name in ("mid_us", "p99_us", "max_us", "batch_us")),
        in_time(row["deregister_us"]),
        in_time(row["high"]) + slowest,
    ]
    return Row(names.get(row["comm"], "c?"), short(row["comm"], 20), row["kind"], row["ranks"], cells)


def _milliseconds(us: float | None) -> float:
    return round((us or 0) / 1000, 4)

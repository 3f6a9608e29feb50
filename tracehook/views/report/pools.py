"""Pools: what the policies chose, what each pool held at most, and how much of it lay idle."""

from __future__ import annotations

from dataclasses import dataclass

from tracehook.audit.store import Store
from tracehook.log.text import in_bytes
from tracehook.views.report.phrases import rank_ranges, short
from tracehook.views.report.series import sql

_MOST_ROWS = 16


@dataclass
class PoolTables:
    """Two tables: answers of the policies (policy, answer, times, ranks) and pools (one row a number)."""

    answers: list[list[str]]
    pools: list[list[str]]
    more: int


def read_pools(store: Store) -> PoolTables:
    """Ask the store for both tables."""
    answers = store.rows(
        f"""SELECT left(CASE WHEN event.choice < 0 THEN 'none answered'
                             ELSE coalesce(str_split(process.policy, ',')[event.choice + 1], '?') END, 80) AS policy,
                   left(answer, 40) AS answer, count(*) AS times, list(DISTINCT event.rank) AS ranks
            FROM event JOIN process USING (process) WHERE event = 'policy.chosen' GROUP BY 1, 2
            ORDER BY times DESC LIMIT {_MOST_ROWS}"""
    )
    pools = store.rows(f"{sql('pools.sql')} LIMIT {_MOST_ROWS}")
    return PoolTables(
        [[short(row["policy"]), short(row["answer"]), f"{row['times']:,}", _ranks(row["ranks"])] for row in answers],
        [
            [
                str(row["pool"]),
                f"{row['processes']:,}",
                *(f"{row[name]:,.0f}" for name in ("grown", "windows", "retired", "reused")),
                in_bytes(row["mid"]),
                in_bytes(row["high"]) + _fullest(row["fullest"], row["high"] > row["mid"]),
                in_bytes(row["last"]),
            ]
            for row in pools
        ],
        pools[0]["all_rows"] - len(pools) if pools else 0,
    )


def _ranks(ranks: list[int | None]) -> str:
    return rank_ranges(rank for rank in ranks if rank is not None) or "\u2013"


def _fullest(rank: int | None, differs: bool) -> str:
    return f" (rank {rank})" if differs and rank is not None else ""

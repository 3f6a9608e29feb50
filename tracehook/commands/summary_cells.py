"""The cells of the table of ``tracehook summary``: what it counts of a process, and how its log ended."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from tracehook.audit.summary import Summary

_COUNTED = ("segs", "freed", "comms", "ended", "aborted", "regs", "undone", "dropped", "left")
_OF_WINDOWS = ("windows", "held")
_LAST = ("failed", "warn", "log")


def new_table(title: str, first: Sequence[str], with_windows: bool) -> Table:
    """Return a table without rows: what it is of, and then the counts."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in (*first, *_COUNTED, *(_OF_WINDOWS if with_windows else ()), *_LAST):
        is_host = column == "host"
        table.add_column(column, justify="left" if is_host else "right", overflow="fold", no_wrap=is_host)
    return table


def numbers_of(row: Summary, with_windows: bool) -> list[int]:
    """Return the counts of a process."""
    numbers = [row.segments, row.segments_freed, row.communicators, row.destroyed, row.aborted]
    numbers += [row.local.made, row.local.undone, row.local.dropped, row.local.left]
    numbers += [row.windows.made, row.windows.left] if with_windows else []
    return [*numbers, row.failures, row.warnings]


def cells_of(row: Summary, with_windows: bool) -> list[str]:
    """Return a row of the table of processes."""
    rank = "-" if row.rank is None else str(row.rank)
    return [rank, str(row.pid), *map(str, numbers_of(row, with_windows)), log_state(row)]


def log_state(row: Summary) -> str:
    """Return how a log ended, or how many events it lost."""
    if row.lost:
        return f"{row.lost} lost"
    return "ended" if row.ended else "open"

"""What ``tracehook summary`` shows of very many processes: a row for hosts that are alike, and processes to look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from tracehook.audit.summary import Summary
from tracehook.commands.summary_cells import cells_of, log_state, new_table, numbers_of
from tracehook.log.text import many, printable

MOST_PROCESSES = 64  # that have a row each, whatever their hosts
_MOST_ROWS = 40  # of hosts that are alike
_MOST_TROUBLED = 16
_LONGEST_NAME = 24

Placed = tuple[str, Summary]  # a process, and its host


def tables(placed: Sequence[Placed], with_windows: bool) -> Iterator[RenderableType]:
    """Yield the table of hosts, and that of processes that somebody should look at, each with what it leaves out."""
    by_host: dict[str, list[Summary]] = {}
    for host, row in placed:
        by_host.setdefault(host, []).append(row)
    title = f"tracehook: {many(len(placed), 'process')} on {len(by_host)} hosts"
    table = new_table(title, ("host", "ranks"), with_windows)
    everyone = [row for _, row in placed]
    table.add_row("all", str(len(everyone)), *_sums(everyone, with_windows), style="bold")
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in sorted(by_host, key=_natural):
        alike.setdefault((str(len(by_host[host])), *_sums(by_host[host], with_windows)), []).append(host)
    some_ended = any(row.ended for row in everyone)
    # Those in trouble come first, and then those that differ from most.
    kinds = sorted(alike.items(), key=lambda kind: (not _trouble(by_host[kind[1][0]], some_ended), len(kind[1])))
    for cells, hosts in kinds[:_MOST_ROWS]:
        table.add_row(*map(Text, (_named(hosts), *cells)))
    yield table
    if left := sum(len(hosts) for _, hosts in kinds[_MOST_ROWS:]):
        yield Text(f"and {left} more hosts; --ranks shows each process")
    troubled = _trouble(everyone, some_ended)
    if not troubled:
        return
    hosts_of = {id(row): host for host, row in placed}
    worst = new_table("processes to look at", ("host", "rank", "pid"), with_windows)
    for row in troubled[:_MOST_TROUBLED]:
        worst.add_row(*map(Text, (_shown(hosts_of[id(row)]), *cells_of(row, with_windows))))
    yield Text("")
    yield worst
    if len(troubled) > _MOST_TROUBLED:
        yield Text(f"and {len(troubled) - _MOST_TROUBLED} more; --ranks shows each process")


def _sums(rows: Sequence[Summary], with_windows: bool) -> list[str]:
    sums = [sum(column) for column in zip(*(numbers_of(row, with_windows) for row in rows), strict=True)]
    return [*map(str, sums), _log_states(rows)]


def _log_states(rows: Sequence[Summary]) -> str:
    """Return how all of these logs ended, or how many did not."""
    if lost := sum(row.lost for row in rows):
        return f"{lost} lost"
    still_open = sum(not row.ended for row in rows)
    return f"{still_open} open" if 0 < still_open < len(rows) else log_state(rows[0])


def _trouble(rows: Sequence[Summary], some_ended: bool) -> list[Summary]:
    """Return processes with refused calls, warnings or lost events, and those whose log is open where others ended."""
    found = [row for row in rows if row.failures or row.warnings or row.lost or (some_ended and not row.ended)]
    return sorted(found, key=lambda row: (not row.failures, not row.lost, row.ended, -row.warnings, row.rank or 0))


def _named(hosts: Sequence[str]) -> str:
    return _shown(hosts[0]) + (f" and {len(hosts) - 1} alike" if len(hosts) > 1 else "")


def _shown(host: str) -> str:
    return printable(host, _LONGEST_NAME, instead="?")


def _natural(host: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", host)]

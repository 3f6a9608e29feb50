"""What ``tracehook watch`` shows of a job on several hosts: a row for each, and processes of those in trouble.

Of very many hosts those in trouble come first. How much is shown of each depends on how high the terminal is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tracehook.audit.live_hosts import Concern, WatchedHost
from tracehook.audit.live_process import Process, State
from tracehook.commands.watch_cells import COLUMNS, numbers, row_of, state_cell, style
from tracehook.log.text import plural, printable, ranges_of, told_ranges

_MOST_OF_HOST = 8  # processes that are shown of one host
_FEW = 2  # processes of a host in trouble that are shown before hosts that are well
_LONGEST_NAME = 24  # characters, of a host
_LONGEST_RANKS = 13
_LINES_TOLD = 8  # of hosts that come into trouble, at one look

NAMES = ("segments", "bytes", "communicators", "held", "warnings", "waiting", "dropped")  # in JSON, of the numbers
HEADER = ("host", "ranks", "state", *COLUMNS)


def fill(table: Table, hosts: Sequence[WatchedHost], now: float, lines: int | None) -> str:
    """Add the rows of hosts and of their worst processes, at most `lines`; return what to say of the other hosts."""
    of_each = _MOST_OF_HOST if lines is None else _processes_shown(hosts, lines)
    shown = hosts if lines is None else _fitting(hosts, of_each, lines)
    for host in shown:
        worst = host.worst
        cells = [
            shown_name(host.name),
            told_ranks(host),
            f"{host.states[worst]} {state_cell(worst, host.longest[worst])}",
        ]
        has_alerts = any(process.alerts for process in host.processes)
        row = (*cells, *numbers(host.processes))
        table.add_row(*map(Text, row), style=style(worst, has_alerts))
        for _, _, process in host.troubled[:of_each]:
            rank, pid, *rest = row_of(process, now)
            who = f"  rank {rank}" if process.summary.rank is not None else "  no rank"
            table.add_row(
                *map(Text, (who, f"pid {pid}", *rest)), style=style(process.state(now)[0], bool(process.alerts))
            )
    return _others(hosts[len(shown) :])


def _processes_shown(hosts: Sequence[WatchedHost], lines: int) -> int:
    """Return how many processes of each host in trouble there is room for."""
    troubled = [len(host.troubled) for host in hosts if host.troubled]
    for most in range(_MOST_OF_HOST, 0, -1):
        needed = len(troubled) + sum(min(most, count) for count in troubled)
        if needed + (len(hosts) - len(troubled) if most > _FEW else 0) <= lines:
            return most
    return 0 if len(troubled) > lines // 2 else 1


def _fitting(hosts: Sequence[WatchedHost], of_each: int, lines: int) -> Sequence[WatchedHost]:
    for count, host in enumerate(hosts):
        lines -= 1 + len(host.troubled[:of_each])
        if lines < 0:
            return hosts[:count]
    return hosts


def _others(hosts: Sequence[WatchedHost]) -> str:
    if not hosts:
        return ""
    more = f"and {len(hosts):,} more {plural(len(hosts), 'host')}"
    troubled = sum(bool(host.troubled) for host in hosts)
    return f"{more}, {'all well' if not troubled else f'{troubled} of them in trouble'}"


def shown_name(host: str) -> str:
    """Return the name of a host as a line that no terminal obeys."""
    return printable(host, _LONGEST_NAME, instead="?")


def told_ranks(host: WatchedHost) -> str:
    """Return the ranks of a host, or, if these would take too long to say, how many there are."""
    ranks = {process.summary.rank for process in host.processes} - {None}
    told = told_ranges(ranges_of(rank for rank in ranks if rank is not None))
    if len(ranks) < len(host.processes) or len(told) > _LONGEST_RANKS:
        return f"{len(host.processes)} in all"
    return told


class Changes:
    """The hosts that came into trouble since the last look, as lines."""

    def __init__(self) -> None:
        self._known: dict[str, Concern] = {}

    def lines(self, hosts: Sequence[WatchedHost]) -> Iterator[str]:
        """Yield a line for each host that is worse than at the last look; warnings have lines of their own."""
        now = {host.name: host.concern for host in hosts if host.concern < Concern.WARNED}
        worse = [
            host for host in hosts if host.name in now and now[host.name] < self._known.get(host.name, Concern.NONE)
        ]
        for host in worse[:_LINES_TOLD]:
            yield _told(host)
        if len(worse) > _LINES_TOLD:
            yield f"and {len(worse) - _LINES_TOLD} more hosts like these"
        self._known = now


def _told(host: WatchedHost) -> str:
    worst = [(seconds, process) for concern, seconds, process in host.troubled if concern == host.concern]
    state = state_cell(host.worst, max(seconds for seconds, _ in worst))
    who = names_of([process for _, process in worst])
    return f"{shown_name(host.name)}: {who} {state}, of {len(host.processes)} processes"


def names_of(processes: Sequence[Process]) -> str:
    """Name processes by their ranks, as in ``ranks 3, 5-7``, or by their number."""
    ranks = [process.summary.rank for process in processes if process.summary.rank is not None]
    words = [f"rank{'s' if len(ranks) > 1 else ''} {told_ranges(ranges_of(ranks))}"] if ranks else []
    words += [f"pid {process.summary.pid}" for process in processes if process.summary.rank is None][:_LINES_TOLD]
    return ", ".join(words)


def as_json(host: WatchedHost) -> dict[str, Any]:
    """Return what ``--json`` prints of a host (docs/watch.md)."""
    return {
        "host": host.name,
        "processes": len(host.processes),
        "ranks": sorted(process.summary.rank for process in host.processes if process.summary.rank is not None),
        "states": {state.value: host.states[state] for state in State},
        "in_trouble": len(host.troubled),
        **dict(zip(NAMES, map(sum, zip(*(process.numbers for process in host.processes), strict=True)), strict=True)),
    }

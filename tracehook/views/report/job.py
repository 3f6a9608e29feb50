"""What ran: the processes of the job, where they differ, and how complete their logs are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tracehook.audit.store import Store
from tracehook.log.text import ranks_in_words
from tracehook.versions import nccl_name
from tracehook.views.report.phrases import in_seconds, missing_ranks, rank_ranges, short

_MOST_VALUES = 4
_MOST_LINES = 10
_DIFFERING = ("tracehook", "torch", "nccl", "cuda", "python", "policy", "allocator", "argv", "schema")
_SAID: dict[str, Callable[[str], str]] = {"nccl": nccl_name}
_USED = "(used_cuda OR NOT EXISTS (FROM process WHERE used_cuda))"


@dataclass
class Fact:
    """One line: its name, its values with the ranks that have them, and whether a reader should look at it."""

    name: str
    values: list[tuple[str, str]]
    odd: bool = False


@dataclass
class Job:
    """What is said at the top of the page."""

    facts: list[Fact] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    left_out: str = ""
    emulated: bool = False


def describe(store: Store) -> Job:
    """Ask the store what ran."""
    job = Job()
    total = store.rows(
        f"""SELECT count(*) AS processes, (SELECT count(*) FROM process) AS files,
              list(rank) FILTER (rank IS NOT NULL) AS ranks, max(world_size) AS world, count(DISTINCT host) AS hosts,
              min(began)::VARCHAR AS began, max(greatest(last_ns, alive_ns)) AS last_ns, sum(events)::BIGINT AS events,
              count(*) FILTER (ended) AS ended, list(rank) FILTER (NOT ended) AS unended,
              count(*) FILTER (recovered > 0) AS killed, sum(recovered)::BIGINT AS recovered,
              sum(lost)::DOUBLE AS lost, count(*) FILTER (torn) AS torn, sum(foreign_lines)::BIGINT AS "foreign",
              bool_or(coalesce(emulated = 'True', false)) AS emulated
            FROM process WHERE {_USED}"""
    )[0]
    job.emulated = bool(total["emulated"])
    job.facts = [
        Fact("directory", [(short(store.directory.path, 400), "")]),
        _values(store, "job", "job"),
        _ranks(total),
        _values(store, "host", "hosts" if total["hosts"] != 1 else "host", may_differ=True),
        *(_values(store, name, name) for name in _DIFFERING),
        Fact("emulated", [("yes: a rehearsal, times are not those of a GPU" if job.emulated else "no", "")]),
        Fact("began", [(f"{total['began']} UTC" if total["began"] else "not known", "")]),
        Fact("lasted", [(in_seconds(total["last_ns"]), "")]),
        Fact("events", [(f"{total['events']:,} of {total['processes']} processes that used CUDA", "")]),
        _completeness(total),
    ]
    _complain(store, job)
    return job


def _ranks(total: dict[str, Any]) -> Fact:
    present = total["ranks"] or []
    said = f"{rank_ranges(present)} ({len(set(present))} of {total['world'] or '?'})" if present else "none is known"
    missing, which = missing_ranks(present, total["world"] or 0)
    if missing:
        said += f"; no log of {which}"
    if total["files"] > total["processes"]:
        idle = total["files"] - total["processes"]
        said += f"; {idle} more process{'es' if idle > 1 else ''} did not use CUDA"
    return Fact("ranks", [(said, "")], odd=missing > 0)


def _values(store: Store, column: str, name: str, may_differ: bool = False) -> Fact:
    say = _SAID.get(column, str)
    rows = store.rows(
        f"""SELECT left(any_value({column}), 400) AS value, list(rank) FILTER (rank IS NOT NULL) AS ranks,
                   count(*) AS n, count(*) OVER () AS distinct_values
            FROM process WHERE {_USED} GROUP BY {column} ORDER BY n DESC, min(rank) LIMIT {_MOST_VALUES}"""
    )
    several = len(rows) > 1
    values = [
        (
            "\u2013" if row["value"] in (None, "") else short(say(row["value"]), 300),
            ranks_in_words(row["ranks"], dash="\u2013") if several and row["ranks"] else "",
        )
        for row in rows
    ]
    if rows and rows[0]["distinct_values"] > len(rows):
        values.append((f"and {rows[0]['distinct_values'] - len(rows)} more", ""))
    return Fact(name, values, odd=several and not may_differ)


def _completeness(total: dict[str, Any]) -> Fact:
    said = [f"{total['ended']} of {total['processes']} processes closed their logs"]
    unended = [rank for rank in total["unended"] or [] if rank is not None]
    if unended:
        said.append(ranks_in_words(unended, dash="\u2013") + " did not")
    if total["recovered"]:
        said.append(f"{total['recovered']:,} events of {total['killed']} of them were read from rings")
    if total["torn"]:
        said.append(f"{total['torn']} end in the middle of a line")
    if total["lost"]:
        said.append(f"{total['lost']:,.0f} events are lost")
    if total["foreign"]:
        said.append(f"{total['foreign']:,} lines are no events")
    odd = bool(total["lost"] or total["foreign"] or total["torn"] or total["ended"] < total["processes"])
    return Fact("logs", [("; ".join(said), "")], odd=odd)


def _complain(store: Store, job: Job) -> None:
    lines = [
        row["complaint"] for row in store.rows("SELECT complaint FROM process WHERE complaint != '' ORDER BY process")
    ]
    lines += [f"not read: {line}" for line in store.directory.foreign + store.directory.unreadable]
    job.complaints = [short(line, 300) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        job.left_out = f"and {len(lines) - _MOST_LINES} more"

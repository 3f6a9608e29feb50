"""Which bugs that somebody has reported already the first finding of an audit looks like; see tracehook/known."""

from __future__ import annotations

import re
from typing import Any

from tracehook import known
from tracehook.audit.finding import Finding
from tracehook.audit.store import Store

_SQL = """
SELECT any_value(nccl) AS nccl, any_value(torch) AS torch, any_value(driver) AS driver,
       count(DISTINCT host) > 1 AS several_hosts, bool_or(infiniband = 'True') AS infiniband,
       bool_or(machine = 'aarch64') AS aarch64,
       bool_or(allocator LIKE '%expandable_segments:True%') AS expandable,
       (SELECT count(*) FROM registration WHERE kind = 'local') > 0 AS registered,
       (SELECT count(*) FROM event WHERE event = 'register.window') > 0 AS windows,
       (SELECT bool_or(true) FROM event WHERE event = 'segment.unmap') AS sleeps, -- not seen of all who unmap
       (SELECT count(*) FROM event WHERE capturing OR graphs > 0 OR tallies LIKE '%,captured,%') > 0 AS graphs,
       (SELECT bool_and(waiting) FROM (
            SELECT count(stall.seq) > 0 AS waiting FROM communicator AS one
            LEFT JOIN event AS stall ON stall.process = one.process AND stall.comm = one.comm
                                    AND stall.event = 'register.stalled'
            WHERE one.comm IN (SELECT comm FROM event WHERE event = 'register.stalled')
            GROUP BY one.process, one.comm)) AS all_came,
       (SELECT count(*) FROM event WHERE event = 'deregister.stalled') > 0 AS deregistering,
       (SELECT count(*) FROM process WHERE signal = 6) > 0 AS aborts,
       coalesce(any_value(nccl_settings),  -- else of a job that made no communicator
                (SELECT any_value(nccl_settings) FROM process WHERE rank IS NOT NULL AND NOT helper)) AS environment
FROM process WHERE communicators > 0
"""

_MAY_BE_NO_HANG = ("interrupted", "no-end")


def looks_like(store: Store, first: Finding | None) -> tuple[known.Bearing, ...]:
    """Return the bugs that the first finding may come from: of all conditions it is known that they hold."""
    bugs = [bug for bug in known.those() if first is not None and first.rule in bug.rules]
    if not bugs:
        return ()
    facts = _facts(store)
    return tuple(found for found in known.bearing_on(facts, bugs) if not found.if_also and found.bug.is_seen(facts))


def _facts(store: Store) -> known.JobFacts:
    (row,) = store.rows(_SQL)
    traits = {name: bool(row[name]) for name in known.TRAITS if row.get(name) is not None}
    versions = {name: str(row[name]) for name in known.VERSIONS if row.get(name)}
    seen = {name: bool(row[name]) for name in known.SEEN if row[name] is not None}
    return known.JobFacts(versions, traits, seen, _settings(row["environment"]))


def _settings(told: str | None) -> dict[str, str] | None:
    """Return the settings that the first line of a log tells, as `NAME=value,NAME=value`; a value may have commas."""
    if told is None:
        return None
    return dict(text.partition("=")[::2] for text in re.split(r",(?=[A-Z][A-Z0-9_]+=)", told) if text)


def as_json(found: known.Bearing) -> dict[str, Any]:
    """Return one of them as what ``--json`` prints (docs/audit.md)."""
    bug = found.bug
    return {"bug": bug.name, "effect": bug.effect, "because": list(found.because), "source": bug.source} | {
        "what": bug.what,
        "remedy": bug.remedy,
    }


def sentence(found: known.Bearing, first: Finding) -> str:
    """Say what the first finding looks like, why, and what helps."""
    bug = found.bug
    this = "If the ranks hung before that, it" if first.rule in _MAY_BE_NO_HANG else "This"
    why = f" ({', '.join(found.because)})" if found.because else ""
    return f"{this} looks like {bug.name}{why}: {bug.what} What helps: {bug.remedy} Source: {bug.source}"

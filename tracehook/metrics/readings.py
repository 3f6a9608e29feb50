"""What the metrics of a process are now: from its status, the counts of its events and collectives, and its log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tracehook.log.event_counts import EventCounts
from tracehook.log.tables import PROBLEMS, WARNINGS
from tracehook.metrics.table import DISAGREEMENTS, OUTCOMES, STATES
from tracehook.nccl.counts import PathCount

Bin = tuple[str, str, str, str]  # operation, bucket, path, captured


def by_path(counts: Iterable[PathCount]) -> dict[Bin, tuple[int, int]]:
    """Return number and bytes of all communicators together."""
    sums: dict[Bin, list[int]] = defaultdict(lambda: [0, 0])
    for row in counts:
        one = sums[row.operation, str(row.bucket), row.path, "true" if row.captured else "false"]
        one[0] += row.count
        one[1] += row.nbytes
    return {key: (count, nbytes) for key, (count, nbytes) in sums.items()}


def by_communicator(counts: Iterable[PathCount]) -> dict[str, int]:
    """Return the number of collectives by the key of their communicator."""
    sums = Counter[str]()
    for row in counts:
        sums[row.comm] += row.count
    return dict(sums)


_KINDS = {"segments_since_ns": "local", "windows_since_ns": "window"}  # by column of a communicator
_ACTIONS = ("register", "deregister")


class Reading(NamedTuple):
    """One value of a metric, with the values of its own labels."""

    metric: str
    labels: tuple[str, ...]
    value: float


class Sources(NamedTuple):
    """Where the numbers come from, all of one moment."""

    status: Mapping[str, Any]
    facts: Mapping[str, Any]  # of the first line of the log
    tally: EventCounts
    collectives: Mapping[Bin, tuple[int, int]]
    called: Mapping[str, int]  # collectives by communicator
    schema: str
    log_bytes: int
    log_stopped: bool
    pool_limit: int
    time: float  # Unix time
    monotonic_ns: int
    ended: float  # Unix time; 0: it runs


def readings(now: Sources) -> Iterator[Reading]:
    """Yield all values, those first of which there is a fixed number."""
    yield from _of_process(now)
    yield from _of_registrations(now)
    yield from _of_windows(now)
    yield from _of_agreements(now.tally)
    yield from _of_pools(now)
    for event in sorted(WARNINGS | PROBLEMS):
        if count := now.tally.count(event):
            yield Reading("tracehook_problems_total", (event,), count)
    for labels, (count, nbytes) in now.collectives.items():
        yield Reading("tracehook_collectives_total", labels, count)
        yield Reading("tracehook_collective_bytes_total", labels, nbytes)
    for row in now.status["communicators"]:
        if row["size"] > 1:
            yield Reading("tracehook_communicator_collectives_total", (row["key"],), now.called.get(row["key"], 0))
    for row in now.status["communicators"]:
        for kind, nbytes in (row["memory"] or {}).items():
            yield Reading("tracehook_communicator_memory_bytes", (row["key"], kind), nbytes)
    for missed, count in now.tally.missed():
        yield Reading("tracehook_ranks_missed_total", (missed.comm, str(missed.rank)), count)


def _of_process(now: Sources) -> Iterator[Reading]:
    facts, status = now.facts, now.status
    versions = (facts.get("tracehook"), facts.get("torch"), status["nccl"] or None, facts.get("python"), now.schema)
    yield Reading("tracehook_info", tuple("" if one is None else str(one) for one in versions), 1)
    for state in STATES:
        yield Reading("tracehook_state", (state,), status["state"] == state)
    yield Reading("tracehook_written_timestamp_seconds", (), round(now.time, 3))
    yield Reading("tracehook_ended_timestamp_seconds", (), round(now.ended, 3))
    yield Reading("tracehook_ring_dropped_total", (), status["dropped"])
    yield Reading("tracehook_log_written_bytes_total", (), now.log_bytes)
    yield Reading("tracehook_log_stopped", (), now.log_stopped)


def _of_registrations(now: Sources) -> Iterator[Reading]:
    status, tally = now.status, now.tally
    yield Reading("tracehook_segments", (), status["segments"])
    yield Reading("tracehook_segment_bytes", ("ordinary",), status["bytes"])
    yield Reading("tracehook_segment_bytes", ("expandable",), status["expandable_bytes"])
    states = Counter(
        "failed" if row["failed"] else "ready" if row["ready"] else "pending" for row in status["communicators"]
    )
    for state in ("ready", "pending", "failed"):
        yield Reading("tracehook_communicators", (state,), states[state])
    for by in ("own", "observed"):
        held = sum(row["held"] for row in status["communicators"] if row["local"] == by)
        yield Reading("tracehook_registrations_held", (by,), held)
    for used, name in (("yes", "in_effect"), ("no", "in_vain")):
        seen = sum(row[name] for row in status["communicators"])
        yield Reading("tracehook_registrations_looked_at_total", (used,), seen)
    yield Reading("tracehook_segments_left_out", (), status["left_out"]["segments"])
    for column, kind in _KINDS.items():
        begun = [row[column] for row in status["communicators"] if row[column]]
        since = now.time - (now.monotonic_ns - min(begun)) / 1e9 if begun else 0.0
        yield Reading("tracehook_registration_in_progress_since_timestamp_seconds", (kind,), round(since, 2))
        for action in _ACTIONS:
            event = f"{action}.{kind}"
            failed = tally.failures(event)
            done = "made" if action == "register" else "undone"
            yield Reading(f"tracehook_registrations_{done}_total", (kind,), tally.count(event) - failed)
            yield Reading("tracehook_registrations_failed_total", (kind, action), failed)
            # Those of a batch have no time of their own.
            batch = tally.seconds("register.batch") if event == "register.local" else 0.0
            yield Reading("tracehook_registration_seconds_total", (kind, action), tally.seconds(event) + batch)


def _of_windows(now: Sources) -> Iterator[Reading]:
    groups = now.status["windows"]
    yield Reading("tracehook_windows", (), sum(row["windows"] for row in groups))
    yield Reading("tracehook_window_bytes", (), sum(row["bytes"] for row in groups))
    yield Reading("tracehook_windows_deferred", (), sum(row["deferred"] for row in groups))
    yield Reading("tracehook_groups_refused", (), sum(row["refused"] is not None for row in groups))


def _of_agreements(tally: EventCounts) -> Iterator[Reading]:
    for outcome in OUTCOMES:
        event = f"agreement.{outcome}"
        count = tally.timeouts() if outcome == "timeout" else tally.count(event)
        yield Reading("tracehook_agreements_total", (outcome,), count)
        yield Reading("tracehook_agreement_seconds_total", (outcome,), tally.seconds(event))
    for about, event in DISAGREEMENTS.items():
        yield Reading("tracehook_ranks_disagreed_total", (about,), tally.count(event))


def _of_pools(now: Sources) -> Iterator[Reading]:
    yield Reading("tracehook_pool_limit_bytes", (), now.pool_limit)
    yield Reading("tracehook_pool_limit_reached_total", (), now.tally.count("pool.limit"))
    for row in now.status["pools"]:
        labels = (row["pool"], str(row["device"]))
        yield Reading("tracehook_pool_segments", labels, row["segments"])
        yield Reading("tracehook_pool_held_bytes", labels, row["bytes"])
        yield Reading("tracehook_pool_idle_bytes", labels, row["retired_bytes"])
    scopes: dict[str, list[float]] = defaultdict(list)
    for row in now.status["pools"]:
        scopes.setdefault(row["pool"], [])
    for row in now.status["scopes"]:
        scopes[row["pool"]].append(row["seconds"])
    for pool, seconds in scopes.items():
        yield Reading("tracehook_scopes_open", (pool,), len(seconds))
        yield Reading("tracehook_scope_longest_seconds", (pool,), max(seconds, default=0.0))

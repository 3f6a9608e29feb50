"""The metrics, once: name, kind, labels and meaning. The table in docs/operations.md is made from this one."""

from __future__ import annotations

from typing import Final, NamedTuple

COMMON: Final = ("job_id", "rank", "host", "pid")
"""Labels of every metric. With them no two processes have the same series."""

STATES: Final = ("off", "waiting", "on", "recording", "unsupported", "forked")
OUTCOMES: Final = ("reached", "mismatch", "timeout", "failed")
DISAGREEMENTS: Final = {
    "windows": "agreement.mismatch",
    "placement": "placement.mismatch",
    "calls": "communicator.refused",
    "registrations": "communicator.uneven",
}
"""What ranks may disagree about, with the event that tells of it."""


class Metric(NamedTuple):
    """One metric. A counter's name ends with ``_total``."""

    kind: str  # counter or gauge
    labels: tuple[str, ...]  # besides the common ones
    help: str


def _gauge(help: str, *labels: str) -> Metric:
    return Metric("gauge", labels, help)


def _counter(help: str, *labels: str) -> Metric:
    return Metric("counter", labels, help)


METRICS: Final = {
    "tracehook_info": _gauge("Versions, as labels. The value is 1.", "tracehook", "torch", "nccl", "python", "schema"),
    "tracehook_state": _gauge("1 for the state that tracehook is in, 0 for the others.", "state"),
    "tracehook_written_timestamp_seconds": _gauge("Unix time at which the process read these numbers."),
    "tracehook_ended_timestamp_seconds": _gauge(
        "Unix time at which the process ended in order. 0: it has not done so."
    ),
    "tracehook_segments": _gauge("Segments of the caching allocator, without expandable ones."),
    "tracehook_segment_bytes": _gauge("Bytes of segments of the caching allocator.", "kind"),
    "tracehook_communicators": _gauge("Communicators that live, by their state.", "state"),
    "tracehook_communicator_memory_bytes": _gauge(
        "Bytes of the device that NCCL holds for a communicator: those that a suspend would give back, those that it "
        "gave back until the resume, and the others. NCCL tells it from 2.29.7 on.",
        "comm",
        "kind",
    ),
    "tracehook_registrations_held": _gauge("Registered segments, counted once for each communicator.", "by"),
    "tracehook_registrations_looked_at_total": _counter(
        "Local registrations of which tracehook saw whether NCCL used them in the first call that could.", "used"
    ),
    "tracehook_segments_left_out": _gauge(
        "Segments that nobody registers, because NCCL could not use it, or by choice."
    ),
    "tracehook_registrations_made_total": _counter("Registrations that NCCL made.", "kind"),
    "tracehook_registrations_undone_total": _counter("Registrations that NCCL undid.", "kind"),
    "tracehook_registrations_failed_total": _counter("Calls that NCCL refused.", "kind", "action"),
    "tracehook_registration_seconds_total": _counter(
        "Seconds spent in registrations and deregistrations inside NCCL.", "kind", "action"
    ),
    "tracehook_registration_in_progress_since_timestamp_seconds": _gauge(
        "Unix time at which the oldest registration that is in NCCL now began. 0: there is none.", "kind"
    ),
    "tracehook_windows": _gauge("Windows of groups that use scopes."),
    "tracehook_window_bytes": _gauge("Bytes in these windows."),
    "tracehook_windows_deferred": _gauge("Segments that a capture used and that have no window yet."),
    "tracehook_groups_refused": _gauge("Groups that go on without windows after a failure."),
    "tracehook_agreements_total": _counter("Agreements of ranks on windows, as this rank saw them end.", "outcome"),
    "tracehook_agreement_seconds_total": _counter("Seconds in agreements, with the registrations in them.", "outcome"),
    "tracehook_ranks_missed_total": _counter(
        "How often a rank of a communicator missed an agreement.", "comm", "missed_rank"
    ),
    "tracehook_ranks_disagreed_total": _counter("How often this rank saw that ranks disagreed.", "about"),
    "tracehook_pool_segments": _gauge("Segments of a pool.", "pool", "device"),
    "tracehook_pool_held_bytes": _gauge("Bytes that a pool holds.", "pool", "device"),
    "tracehook_pool_idle_bytes": _gauge(
        "Bytes of a pool that torch gave back and that keep their windows.", "pool", "device"
    ),
    "tracehook_pool_limit_bytes": _gauge("Bytes that the pools of a device may hold. 0: there is no limit."),
    "tracehook_pool_limit_reached_total": _counter("How often that limit stopped a pool from growing."),
    "tracehook_scopes_open": _gauge("Threads that are in a scope of this pool.", "pool"),
    "tracehook_scope_longest_seconds": _gauge("How long the oldest open scope has been open.", "pool"),
    "tracehook_ring_dropped_total": _counter("Events that are not in the log because the ring was full."),
    "tracehook_log_written_bytes_total": _counter("Bytes that this process wrote into its log."),
    "tracehook_log_stopped": _gauge("1: tracehook should write a log and cannot."),
    "tracehook_problems_total": _counter("Events of severity warning or problem, by name.", "event"),
    "tracehook_collectives_total": _counter(
        "Collectives, by size and by the path that NCCL takes.", "operation", "bucket", "path", "captured"
    ),
    "tracehook_collective_bytes_total": _counter(
        "Bytes of these collectives.", "operation", "bucket", "path", "captured"
    ),
    "tracehook_communicator_collectives_total": _counter(
        "Collectives that this rank called on a communicator that lives. A rank that has fewer than the others for "
        "long keeps them waiting.",
        "comm",
    ),
    "tracehook_series_left_out": _gauge("Series that a process left out, because it has too many.", "metric"),
}

"""The counts of a process, from its events."""

import pytest

from tracehook.audit import ring
from tracehook.audit.reader import ProcessLog
from tracehook.audit.summary import summarise

X, Y = 1, 2
SIZE = 4096


def _summary_of(tmp_path, events, **begin):
    return summarise(ProcessLog(tmp_path, {"pid": 10, "rank": 0, **begin}, events))


def _counts(summary):
    return {
        name: getattr(summary, name)
        for name in ("segments", "segments_freed", "communicators", "destroyed", "aborted", "made", "undone", "left")
    }


def test_a_quiet_process_counts_nothing(tmp_path):
    """A process that never used CUDA has a row of zeros, with its rank and pid."""
    summary = _summary_of(tmp_path, [{"event": "trace.begin"}], rank=None)
    assert set(_counts(summary).values()) == {0}
    assert (summary.rank, summary.pid, summary.warnings, summary.failures) == (None, 10, 0, 0)


def test_the_life_of_a_job(harness, events, tmp_path):
    """Segments, communicators and registrations of a real registrar add up: made is undone, dropped or left."""
    harness.create(X)
    harness.create(Y)
    for number in range(1, 6):
        harness.alloc(0, number * 0x10000, SIZE)
    harness.free(0, 0x10000, SIZE)
    harness.kill(Y)
    harness.alloc(0, 0x10000, SIZE)
    summary = _summary_of(tmp_path, events())
    assert _counts(summary) == {
        "segments": 6,
        "segments_freed": 1,
        "communicators": 2,
        "destroyed": 0,
        "aborted": 1,
        "made": 11,
        "undone": 2,
        "left": 5,
    }
    assert summary.dropped_at_abort == 4
    assert summary.made == summary.undone + summary.dropped_at_abort + summary.left


def test_a_clean_end_leaves_nothing(harness, events, tmp_path):
    """When every communicator was destroyed, no registration is left."""
    harness.alloc(0, 0x10000, SIZE)
    for pointer in (X, Y, X):
        harness.create(pointer)
        harness.retire(pointer)
    summary = _summary_of(tmp_path, events())
    assert (summary.communicators, summary.destroyed, summary.made, summary.undone, summary.left) == (3, 3, 3, 3, 0)


def test_an_adopted_segment_counts_as_one(harness, events, tmp_path):
    """A segment older than tracehook is a segment."""
    harness.begin_adoption()
    harness.adopt(0, 0x10000, SIZE)
    harness.end_adoption()
    assert _summary_of(tmp_path, events()).segments == 1


def test_a_refusal_is_a_failure_and_not_a_registration(harness, events, tmp_path):
    """What was undone because of it counts as undone."""
    harness.create(X)
    harness.fail_after(X, 2)
    for number in range(1, 4):
        harness.alloc(0, number * 0x10000, SIZE)
    summary = _summary_of(tmp_path, events())
    assert (summary.made, summary.undone, summary.failures, summary.left) == (2, 2, 1, 0)


@pytest.mark.parametrize(
    "name", ["hook.unsupported", "hook.conflict", "ledger.difference", "segment.unknown", "log.dropped"]
)
def test_warnings_are_counted(tmp_path, name):
    """Each event that deserves a look is counted."""
    assert _summary_of(tmp_path, [{"event": name}] * 2).warnings == 2


def test_events_of_later_versions_are_passed_over(tmp_path):
    """A name that this version does not know changes no count."""
    assert set(_counts(_summary_of(tmp_path, [{"event": "window.made", "comm_id": 1}])).values()) == {0}


def test_no_event_of_the_table_breaks_the_counting(core, tmp_path):
    """Every event that the ring can hold is taken, whatever its fields."""
    for name in ring.EVENTS:
        core.push(name)
    rows = (ring.fields_of(record) for record in ring.unpack(core.data))
    _summary_of(tmp_path, [{"event": name, **fields} for name, fields in rows])

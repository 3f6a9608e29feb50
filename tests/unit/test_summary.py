"""The counts of a process, from its events."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tracehook.audit.summary import launchers, summarise
from tracehook.log import tables
from tracehook.log.folders import own_host
from tracehook.log.reader import ProcessLog

X, Y = 1, 2
SIZE = 4096


def _summary_of(tmp_path, events, **begin):
    return summarise(ProcessLog(tmp_path, {"pid": 10, "rank": 0, **begin}, events))


def _counts(summary):
    """Return segments and those freed, communicators, destroyed and aborted, registrations made, undone, left."""
    names = ("segments", "segments_freed", "communicators", "destroyed", "aborted")
    local = summary.local
    return (*(getattr(summary, name) for name in names), local.made, local.undone, local.left)


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
    assert _counts(summary) == (6, 1, 2, 0, 1, 11, 2, 5)
    assert summary.local.dropped == 4
    assert summary.local.made == summary.local.undone + summary.local.dropped + summary.local.left


def test_a_clean_end_leaves_nothing(harness, events, tmp_path):
    """When every communicator was destroyed, no registration is left."""
    harness.alloc(0, 0x10000, SIZE)
    for pointer in (X, Y, X):
        harness.create(pointer)
        harness.retire(pointer)
    assert _counts(_summary_of(tmp_path, events())) == (1, 0, 3, 3, 0, 3, 3, 0)


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
    assert (summary.local.made, summary.local.undone, summary.failures, summary.local.left) == (2, 2, 1, 0)


@pytest.mark.parametrize("name", sorted(tables.WARNINGS | tables.PROBLEMS))
def test_what_the_table_calls_a_warning_or_a_problem_is_counted(tmp_path, name):
    """Each event that deserves a look is counted; which these are stands in the table of events only."""
    assert _summary_of(tmp_path, [{"event": name}] * 2).warnings == 2


@pytest.mark.parametrize("name", sorted(set(tables.EVENTS) - tables.WARNINGS - tables.PROBLEMS))
def test_no_other_event_is_a_warning(tmp_path, name):
    """What happens in every good run is not counted."""
    assert _summary_of(tmp_path, [{"event": name}]).warnings == 0


def _window(event, comm=1, **fields):
    return {"event": f"{event}.window", "comm_id": comm, "ok": True, "effective": True, **fields}


def test_windows_are_made_undone_dropped_and_left(tmp_path):
    """Apart from local registrations. Refused ones are failures; what NCCL took without a window is neither."""
    summary = _summary_of(
        tmp_path,
        [
            *[_window("register")] * 4,
            *[_window("register", comm=2)] * 3,
            {"event": "register.local", "comm_id": 2, "ok": True},
            _window("deregister"),
            {"event": "communicator.abort", "comm_id": 2, "registrations": 1},
        ],
    )
    windows = summary.windows
    assert (windows.made, windows.undone, windows.dropped, windows.left) == (7, 1, 3, 3)
    assert (summary.local.made, summary.local.undone, summary.local.dropped, summary.local.left) == (1, 0, 1, 0)
    assert (summary.failures, summary.warnings) == (0, 0)
    summary = _summary_of(
        tmp_path,
        [
            _window("register", ok=False, error=3),
            _window("register"),
            _window("deregister", ok=False, error=1),
            _window("register", effective=False),
        ],
    )
    assert (summary.failures, summary.windows.made, summary.windows.undone, summary.windows.left) == (2, 1, 0, 1)


def test_windows_of_a_real_registrar(harness, events, tmp_path):
    """The fields that the native side writes are those that are counted."""
    harness.open_bank()
    harness.create(X)
    member = harness.find_communicator(X)
    for _ in range(2):
        harness.take(1, 0, 1 << 20)
    segments = [row.id for row in harness.pool_segments()]
    assert len(member.register_windows(segments)) == 2
    member.confirm_windows()
    assert member.deregister_windows(segments[:1]) == 1
    windows = _summary_of(tmp_path, events()).windows
    assert (windows.made, windows.undone, windows.left) == (2, 1, 1)


def test_the_most_of_expandable_segments(harness, events, tmp_path):
    """What was mapped at once at most is kept, over growing, shrinking and growing again; it is no segment."""
    harness.map(0, 0x10000, SIZE)
    harness.map(0, 0x20000, 2 * SIZE)
    harness.unmap(0, 0x10000, SIZE)
    harness.map(0, 0x40000, SIZE // 2)
    summary = _summary_of(tmp_path, events())
    assert (summary.expandable, summary.segments, summary.local.made) == (3 * SIZE, 0, 0)


def test_events_of_later_versions_are_passed_over(tmp_path):
    """A name that this version does not know changes no count."""
    assert set(_counts(_summary_of(tmp_path, [{"event": "window.made", "comm_id": 1}]))) == {0}


def _row(tmp_path, rank, is_busy):
    events = [{"event": "segment.alloc", "segment": 1}] if is_busy else []
    return _summary_of(tmp_path, events, rank=rank)


def test_launchers_and_helpers_have_no_row(tmp_path):
    """A rank that did nothing yet has one; of two processes of one rank the one that did nothing has none."""
    rows = [_row(tmp_path, *who) for who in ((None, False), (0, True), (0, False), (1, False), (None, True))]
    assert launchers(rows) == {0, 2}
    assert launchers([_row(tmp_path, None, False)]) == set(), "where nobody did anything, all are shown"


@pytest.mark.parametrize(
    ("last", "how", "end"),
    [
        ([{"event": "trace.end", "how": "exit"}], {}, "ended"),
        ([{"event": "trace.end", "how": "exit", "status": 3}], {}, "exit 3"),
        ([{"event": "python.exit", "status": 7}], {"has_ring": True}, "exit 7"),
        ([{"event": "python.exit", "status": 0}], {"has_ring": True}, "ended"),
        ([{"event": "python.exception", "exception": "ValueError"}], {"has_ring": True}, "raised"),
        ([{"event": "trace.end", "how": "exception", "exception": "ValueError", "status": 1}], {}, "raised"),
        ([], {"signal": 15, "has_ring": True}, "SIGTERM"),
        ([], {"has_ring": True}, "killed"),
        ([], {}, "open"),
    ],
)
def test_how_a_process_ended(tmp_path, last, how, end):
    """In a word: in order, with a status, by an exception, by a signal, without a word, or nobody knows."""
    log = ProcessLog(tmp_path, {"pid": 10, "host": "elsewhere"}, last, **how)
    log.ended = any(event["event"] == "trace.end" for event in last)
    assert summarise(log).end == end


def test_a_process_that_runs_or_was_killed_here(tmp_path):
    """This host knows whether the process of a log without an end still runs."""
    begin = {"pid": os.getpid(), "host": own_host(), "time": datetime.now(UTC).isoformat()}
    assert summarise(ProcessLog(tmp_path, begin, [])).end == "runs"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        assert summarise(ProcessLog(tmp_path, begin | {"pid": ended.pid}, [])).end == "killed"

"""What somebody else registers with a communicator: recorded with its segment, and never made or undone by us."""

import pytest

KIB = 1024
X, Y = 1, 2
A, B = 0x10000, 0x20000
HANDLE, OTHER = 0x77, 0x88
WANTED = ("segment.alloc", "register.local", "deregister.local", "segment.free", "segment.adopt", "segment.unknown")


def story(events):
    """Return what happened to segments, in order: the event, its segment, and whether it was seen, not done."""
    return [(row["event"], row["segment"], row.get("observed", False)) for row in events() if row["event"] in WANTED]


def held_by_others(harness):
    """Let others register a segment with their communicator."""
    harness.create(X, observed=True)
    harness.alloc(0, A, 4 * KIB)
    harness.others_register(X, A, 4 * KIB, HANDLE)


def test_nothing_is_registered_by_us(harness, calls_of, events):
    """Neither what is there, nor what comes, nor what goes; switching off and on does not touch it."""
    harness.alloc(0, A, 4 * KIB)
    harness.create(X, observed=True)
    harness.alloc(0, B, 4 * KIB)
    harness.set_registering(False)
    harness.set_registering(True)
    harness.collective(X)
    harness.free(0, A, 4 * KIB)
    harness.retire(X)
    assert calls_of(X) == []
    assert [event for event, *_ in story(events)] == ["segment.alloc", "segment.alloc", "segment.free"]
    assert [row["local"] for row in events("communicator.pending")] == ["observed"]


def test_others_are_told_of_segments_first(harness, events):
    """They register what we do not know yet, and deregister before we hear of the free; the log has the true order."""
    harness.create(X, observed=True)
    harness.others_register(X, A, 4 * KIB, HANDLE)
    harness.alloc(0, A, 4 * KIB)
    harness.others_deregister(X, HANDLE)
    harness.free(0, A, 4 * KIB)
    assert story(events) == [
        ("segment.alloc", 1, False),
        ("register.local", 1, True),
        ("deregister.local", 1, True),
        ("segment.free", 1, False),
    ]


def test_we_are_told_of_segments_first(harness, events):
    """Then the event of a free waits until they have deregistered, which they do in the same call of the allocator."""
    harness.create(X, observed=True)
    harness.create(Y, observed=True)
    harness.alloc(0, A, 4 * KIB)
    harness.others_register(X, A, 4 * KIB, HANDLE)
    harness.others_register(Y, A, 4 * KIB, OTHER)
    harness.free(0, A, 4 * KIB)
    harness.others_deregister(X, HANDLE)
    assert story(events)[-1] == ("deregister.local", 1, True)
    harness.others_deregister(Y, OTHER)
    assert story(events)[-2:] == [("deregister.local", 1, True), ("segment.free", 1, False)]


def test_a_segment_that_they_never_let_go(harness, events):
    """It is said to be free when the allocator's next event shows that the call is over, and not before theirs."""
    held_by_others(harness)
    harness.free(0, A, 4 * KIB)
    harness.alloc(1, B, 4 * KIB)  # another device, perhaps another thread
    assert ("segment.free", 1, False) not in story(events)
    harness.alloc(0, A, 4 * KIB)
    assert story(events)[-2:] == [("segment.free", 1, False), ("segment.alloc", 3, False)]
    harness.others_deregister(X, HANDLE)
    assert story(events)[-1] == ("deregister.local", 1, True), "late, and of the segment that it was made for"


@pytest.mark.parametrize("end", ["of the log", "of their communicator"])
def test_an_end_logs_a_free_that_waits_for_them(harness, events, end):
    """Their event may not come any more; what an aborted communicator held is counted as dropped."""
    held_by_others(harness)
    harness.free(0, A, 4 * KIB)
    harness.log_overdue() if end == "of the log" else harness.kill(X)
    assert story(events)[-1] == ("segment.free", 1, False)
    if end == "of their communicator":
        assert [row["registrations"] for row in events("communicator.abort")] == [1]
        assert harness.communicators() == []


def test_ranges_that_are_no_segments(harness, events):
    """A part of a segment, and a failed call, are nothing that lasts."""
    harness.create(X, observed=True)
    harness.alloc(0, A, 4 * KIB)
    harness.others_register(X, A, 2 * KIB, HANDLE)
    harness.others_register(X, A, 4 * KIB, 0, result=3)
    harness.others_deregister(X, HANDLE)
    assert [(row["ok"], row.get("error")) for row in events("register.local")] == [(False, 3)]
    assert events("deregister.local") == []
    (row,) = harness.communicators()
    assert (row["held"], row["made"]) == (0, 0)


def test_what_was_registered_before_the_segment_was_adopted(harness, events):
    """A registration between our attaching and the snapshot is of a segment of the snapshot."""
    harness.create(X, observed=True)
    harness.begin_adoption()
    harness.others_register(X, A, 4 * KIB, HANDLE)
    harness.adopt(0, A, 4 * KIB)
    harness.end_adoption()
    assert story(events) == [("segment.adopt", 1, False), ("register.local", 1, True)]
    (row,) = harness.communicators()
    assert (row["held"], row["made"], row["undone"]) == (1, 1, 0)


def test_our_own_communicators_beside_it(harness, calls_of):
    """They are served as ever."""
    harness.create(X, observed=True)
    harness.create(Y)
    harness.alloc(0, A, 4 * KIB)
    harness.free(0, A, 4 * KIB)
    assert calls_of(Y) == [("register", A), ("deregister", A)]
    assert calls_of(X) == []


def test_a_range_of_no_segment_is_forgotten(harness, events):
    """The next segment of that device ends the wait: a later one at the same address has nothing to do with it."""
    harness.create(X, observed=True)
    harness.others_register(X, 0x900000, 4 * KIB, 0, result=3)
    harness.alloc(0, A, 4 * KIB)
    harness.alloc(0, 0x900000, 4 * KIB)
    assert events("register.local") == []

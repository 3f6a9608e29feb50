"""The order of registrations against the allocator's events, its snapshot and the birth of communicators."""

import pytest

KIB = 1024


def test_a_new_segment_is_registered_when_its_event_returns(harness, calls_of):
    """The allocator's event for a new segment registers it with the communicator before it returns."""
    harness.create(1)
    harness.alloc(0, 0x10000, 4 * KIB)
    assert calls_of(1) == [("register", 0x10000)]


def test_a_freed_segment_is_deregistered_before_the_event_returns(harness, calls_of):
    """The memory may be unmapped as soon as the event returns, so the registration is gone by then."""
    harness.create(1)
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.free(0, 0x10000, 4 * KIB)
    assert calls_of(1) == [("register", 0x10000), ("deregister", 0x10000)]
    assert harness.held(1) == []


def test_only_communicators_of_the_device_are_called(harness, calls_of):
    """A segment concerns the communicators of its own device, all of them, and no other."""
    for pointer, device in ((1, 0), (2, 0), (3, 1)):
        harness.create(pointer, device)
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.free(0, 0x10000, 4 * KIB)
    assert [len(calls_of(pointer)) for pointer in (1, 2, 3)] == [2, 2, 0]


def test_equal_addresses_on_two_devices_are_two_segments(harness):
    """Freeing an address on one device leaves the segment of the same address on another device alone."""
    harness.create(1, device=0)
    harness.create(2, device=1)
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.alloc(1, 0x10000, 8 * KIB)
    harness.free(0, 0x10000, 4 * KIB)
    assert (harness.held(1), harness.held(2)) == ([], [(0x10000, 8 * KIB)])


def test_a_new_communicator_gets_every_live_segment(harness, calls_of):
    """A communicator that comes late is given all that lives on its device, once each, and nothing that was freed.

    From the highest address down: NCCL looks for the place of each from the lowest on.
    """
    for address in (0x30000, 0x10000, 0x20000):
        harness.alloc(0, address, 4 * KIB)
    harness.alloc(1, 0x40000, 4 * KIB)
    harness.free(0, 0x20000, 4 * KIB)
    harness.create(1, device=0)
    assert calls_of(1) == [("register", 0x30000), ("register", 0x10000)]


def test_a_segment_seen_by_event_and_snapshot_is_registered_once(harness, calls_of):
    """The tracker is attached before the snapshot is taken, so a segment may be seen by both."""
    harness.create(1)
    harness.begin_adoption()
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.adopt(0, 0x20000, 4 * KIB)
    harness.adopt(0, 0x20000, 4 * KIB)
    harness.end_adoption()
    assert calls_of(1) == [("register", 0x10000), ("register", 0x20000)]


def test_a_segment_freed_after_the_snapshot_is_not_brought_back(harness, calls_of, events):
    """The snapshot is older than the free that came while it was worked through."""
    harness.create(1)
    harness.begin_adoption()
    harness.free(0, 0x10000, 4 * KIB)
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    assert (calls_of(1), harness.segments(), events("segment.adopt")) == ([], [], [])


def test_an_adopted_segment_that_is_freed_is_not_adopted_again(harness):
    """The tombstone is left by every free of the adoption, also by that of a segment adopted before."""
    harness.create(1)
    harness.begin_adoption()
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.free(0, 0x10000, 4 * KIB)
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    assert harness.held(1) == []


def test_a_segment_freed_and_reallocated_during_adoption_keeps_its_new_size(harness):
    """The event tells the truth about an address; the snapshot's older entry is ignored."""
    harness.create(1)
    harness.begin_adoption()
    harness.free(0, 0x10000, 4 * KIB)
    harness.alloc(0, 0x10000, 16 * KIB)
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    assert harness.held(1) == [(0x10000, 16 * KIB)]


@pytest.mark.parametrize(("address", "size"), [(0x0F000, 8 * KIB), (0x11000, 4 * KIB), (0x13000, 8 * KIB)])
def test_a_snapshot_entry_that_overlaps_a_live_segment_is_ignored(harness, address, size):
    """What the events said lives at these addresses now, so the snapshot's entry does not."""
    harness.create(1)
    harness.begin_adoption()
    harness.alloc(0, 0x10000, 16 * KIB)
    harness.adopt(0, address, size)
    harness.end_adoption()
    assert harness.held(1) == [(0x10000, 16 * KIB)]


def test_tombstones_do_not_outlive_the_adoption(harness):
    """A later adoption starts afresh."""
    harness.create(1)
    harness.begin_adoption()
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.free(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    harness.begin_adoption()
    harness.adopt(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    assert harness.held(1) == [(0x10000, 4 * KIB)]


def test_a_new_segment_drives_out_what_it_overlaps(harness, calls_of, events):
    """Live segments never overlap: one whose free was not seen is deregistered first, and the log says so."""
    harness.create(1)
    harness.alloc(0, 0x10000, 8 * KIB)
    harness.alloc(0, 0x14000, 4 * KIB)
    harness.alloc(0, 0x20000, 4 * KIB)
    harness.alloc(0, 0x11000, 16 * KIB)
    assert calls_of(1)[3:] == [("deregister", 0x10000), ("deregister", 0x14000), ("register", 0x11000)]
    assert [event["addr"] for event in events("segment.unknown")] == ["0x10000", "0x14000"]


def test_neighbours_do_not_overlap(harness, events):
    """A segment that begins where another ends is its neighbour."""
    harness.create(1)
    harness.alloc(0, 0x11000, 4 * KIB)
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.alloc(0, 0x12000, 4 * KIB)
    assert len(harness.held(1)) == 3
    assert events("segment.unknown") == []


def test_an_unknown_free_makes_no_call_and_is_reported(harness, calls_of, events):
    """A free of what was never seen is worth a warning, and nothing else happens."""
    harness.create(1)
    harness.alloc(0, 0x10000, 8 * KIB)
    harness.free(0, 0x11000, 4 * KIB)
    assert calls_of(1) == [("register", 0x10000)]
    assert [event["addr"] for event in events("segment.unknown")] == ["0x11000"]


def test_a_reused_address_is_a_new_segment(harness, calls_of):
    """An address comes again, an id never does: the second life is registered anew."""
    harness.create(1)
    ids = []
    for size in (4 * KIB, 8 * KIB):
        harness.alloc(0, 0x10000, size)
        ids.append(harness.segments()[0].id)
        harness.free(0, 0x10000, size)
    assert ids[0] < ids[1]
    assert [verb for verb, _ in calls_of(1)] == ["register", "deregister", "register", "deregister"]


def test_a_free_between_tracker_and_snapshot_is_no_surprise(harness, events):
    """A segment older than the tracker may be freed before the snapshot is taken; that is no cause for a warning."""
    harness.begin_adoption()
    harness.free(0, 0x10000, 4 * KIB)
    harness.end_adoption()
    assert events("segment.unknown") == []

"""Registration switched off and on again while segments and communicators come and go."""

from tracehook.nccl.segment_rules import LeaveOut

X, Y = 1, 2
SIZE = 4096


def test_segments_that_a_rule_leaves_out_are_followed_and_never_registered(harness, calls_of):
    """Neither at their birth, nor by an adoption, a new communicator or a switch; their free makes no call."""
    harness.set_rules([LeaveOut(below=2 * SIZE).row()])
    harness.alloc(0, 0x10000, SIZE)
    harness.create(X)
    harness.alloc(0, 0x20000, SIZE)
    harness.begin_adoption()
    harness.adopt(0, 0x30000, SIZE)
    harness.end_adoption()
    harness.alloc(0, 0x40000, 2 * SIZE)
    harness.create(Y)
    assert harness.held(X) == harness.held(Y) == [(0x40000, 2 * SIZE)]
    harness.set_registering(False)
    harness.set_registering(True)
    assert harness.held(X) == harness.held(Y) == [(0x40000, 2 * SIZE)]
    before = calls_of(X)
    harness.free(0, 0x10000, SIZE)
    assert calls_of(X) == before
    assert len(harness.segments()) == 3


def test_a_segment_queued_when_off_comes_is_forgotten(harness, calls_of, busy_gate, background):
    """Off while a segment waits for the gate: it is not registered afterwards."""
    harness.create(X)
    with busy_gate(X):
        harness.alloc(0, 0x10000, SIZE)
        off = background(harness.set_registering, False)
        assert not off.returned()
    off.result()
    assert [verb for verb, _ in calls_of(X)] in ([], ["register", "deregister"])
    assert harness.held(X) == []


def test_off_waits_for_a_collective(harness, calls_of, busy_gate, background):
    """A registration is not taken from under a collective."""
    harness.create(X)
    harness.alloc(0, 0x10000, SIZE)
    with busy_gate(X):
        off = background(harness.set_registering, False)
        assert not off.returned()
        assert calls_of(X) == [("register", 0x10000)]
    off.result()
    assert calls_of(X) == [("register", 0x10000), ("deregister", 0x10000)]

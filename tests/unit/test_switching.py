"""Registration switched off and on again while segments and communicators come and go."""

from tracehook.nccl.segment_rules import LeaveOut

X, Y = 1, 2
SIZE = 4096


def test_off_undoes_everything(harness, calls_of):
    """Off means that no communicator holds anything, on any device."""
    harness.create(X, device=0)
    harness.create(Y, device=1)
    harness.alloc(0, 0x10000, SIZE)
    harness.alloc(1, 0x20000, SIZE)
    harness.set_registering(False)
    assert calls_of(X) == [("register", 0x10000), ("deregister", 0x10000)]
    assert calls_of(Y) == [("register", 0x20000), ("deregister", 0x20000)]


def test_off_makes_no_call_for_what_comes(harness, calls_of):
    """While off, neither new segments nor new communicators cause a call."""
    harness.create(X)
    harness.set_registering(False)
    harness.alloc(0, 0x10000, SIZE)
    harness.create(Y)
    harness.free(0, 0x10000, SIZE)
    assert harness.collective(X) is True
    assert (calls_of(X), calls_of(Y)) == ([], [])


def test_on_again_is_complete(harness):
    """What came while off is registered, what went is not, and nothing twice."""
    harness.create(X)
    harness.alloc(0, 0x10000, SIZE)
    harness.alloc(0, 0x20000, SIZE)
    harness.set_registering(False)
    harness.free(0, 0x10000, SIZE)
    harness.alloc(0, 0x30000, SIZE)
    harness.create(Y)
    harness.set_registering(True)
    assert harness.held(X) == harness.held(Y) == [(0x20000, SIZE), (0x30000, SIZE)]


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


def test_switching_to_the_present_state_does_nothing(harness, calls_of, events):
    """On when on, and off when off, are no calls and no events."""
    harness.create(X)
    harness.alloc(0, 0x10000, SIZE)
    harness.set_registering(True)
    assert calls_of(X) == [("register", 0x10000)]
    harness.set_registering(False)
    seen = (calls_of(X), events())
    harness.set_registering(False)
    assert (calls_of(X), events()) == seen


def test_a_communicator_may_end_while_off(harness, calls_of):
    """Retiring or killing has nothing to undo then, and switching on does not call the dead."""
    harness.create(X)
    harness.create(Y)
    harness.alloc(0, 0x10000, SIZE)
    harness.set_registering(False)
    seen = (calls_of(X), calls_of(Y))
    harness.retire(X)
    harness.kill(Y)
    harness.set_registering(True)
    assert (calls_of(X), calls_of(Y)) == seen


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


def test_a_communicator_that_becomes_ready_while_off_holds_nothing(harness, calls_of):
    """Its segments waited for it; off came first."""
    harness.alloc(0, 0x10000, SIZE)
    harness.set_in_progress(X, True)
    harness.create(X)
    harness.set_registering(False)
    harness.set_in_progress(X, False)
    harness.poke(X)
    assert calls_of(X) == []
    harness.set_registering(True)
    assert calls_of(X) == [("register", 0x10000)]


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

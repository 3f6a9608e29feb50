"""One thread at a time inside a communicator: what waits for the gate and what does not."""

import time

KIB = 1024
X, CHILD = 1, 2


def test_a_segment_that_comes_during_a_collective_is_registered_when_it_ends(harness, calls_of, background, until):
    """The event returns at once and calls nothing; who leaves the gate registers, once."""
    harness.create(X)
    collective = background(harness.collective, X, 400_000)
    addresses: list[int] = []

    def comes_too_late():
        addresses.append(0x1000 * (len(addresses) + 1))
        harness.alloc(0, addresses[-1], 4 * KIB)
        return len(calls_of(X)) < len(addresses)

    until(comes_too_late)
    assert not collective.returned(0)
    assert calls_of(X) == [("register", address) for address in addresses[:-1]]
    assert collective.result() is True
    assert calls_of(X) == [("register", address) for address in addresses]


def test_a_free_waits_for_the_gate(harness, calls_of, lives, busy_gate, background, until):
    """Memory that nobody can keep goes when the event returns, so the event waits until the registration is undone."""
    harness.create(X)
    harness.alloc(0, 0x10000, 4 * KIB)
    with busy_gate(X):
        free = background(harness.free, 0, 0x10000, 4 * KIB)
        until(lambda: not lives(0x10000))
        assert not free.returned()
        assert calls_of(X) == [("register", 0x10000)]
    free.result()
    assert calls_of(X) == [("register", 0x10000), ("deregister", 0x10000)]


def test_a_free_waits_for_nobody_who_does_not_hold_the_segment(harness, busy_gate, calls_of):
    """Whatever call is inside the gate of a communicator: a free waits only for a registration of that segment."""
    harness.create(X)
    harness.alloc(0, 0x10000, 4 * KIB)
    harness.set_registering(False)
    with busy_gate(X):
        harness.free(0, 0x10000, 4 * KIB)
    assert calls_of(X) == [("register", 0x10000), ("deregister", 0x10000)]


def test_a_collective_waits_for_the_gate(harness, busy_gate, background):
    """A collective does not look at the registrations while another thread changes them."""
    harness.create(X)
    with busy_gate(X):
        collective = background(harness.collective, X)
        assert not collective.returned()
    assert collective.result() is True


def test_a_registration_of_others_does_not_wait_for_ever(harness, busy_gate):
    """Torch undoes its registrations before it aborts: all of them pass a thread that hangs, after one waited."""
    harness.create(X)
    with busy_gate(X):
        begin = time.monotonic()
        assert harness.by_others(X) is False
        waited = time.monotonic()
        assert [harness.by_others(X) for _ in range(1000)] == [False] * 1000
        assert waited - begin > 4 > time.monotonic() - waited
    assert harness.by_others(X) is True


def test_who_waited_in_vain_waits_again_for_the_next(harness, busy_gate, background):
    """That one thread hung says nothing of those that come after it."""
    harness.create(X)
    with busy_gate(X):
        assert harness.by_others(X) is False
    with busy_gate(X):
        call = background(harness.by_others, X)
        assert not call.returned()
    assert call.result() is True


def test_a_registration_of_others_with_a_dead_communicator_goes_past_the_gate(harness, busy_gate, background):
    """Its end wakes who waits."""
    harness.create(X)
    with busy_gate(X):
        call = background(harness.by_others, X)
        assert not call.returned()
        harness.kill(X)
        assert call.result() is False


def test_parent_and_child_share_one_gate(harness, calls_of, busy_gate):
    """Communicators that share resources are served one at a time; an unrelated one is not held up by them."""
    harness.create(X)
    harness.create(CHILD, parent=X)
    harness.create(3)
    with busy_gate(X):
        harness.alloc(0, 0x10000, 4 * KIB)
        assert [calls_of(pointer) for pointer in (X, CHILD, 3)] == [[], [], [("register", 0x10000)]]
    assert [calls_of(pointer) for pointer in (X, CHILD)] == [[("register", 0x10000)]] * 2

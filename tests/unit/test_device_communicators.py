"""Device communicators: counted, logged, and while one lives, no window of its communicator goes."""

import pytest

KIB = 1024
SIZE = 8 * KIB
X, Y = 1, 2
REFUSED = 5


@pytest.fixture
def create(harness):
    """Make a communicator with one window; return it as a scope sees it."""
    harness.open_bank()

    def made(pointer):
        harness.create(pointer)
        member = harness.find_communicator(pointer)
        address = harness.take(1, 0, SIZE)
        member.register_windows([row.id for row in harness.pool_segments() if row.address == address])
        assert member.confirm_windows()
        return member

    return made


@pytest.fixture
def member(create):
    """Return a communicator with one window."""
    return create(X)


def _pinned(member):
    (window,) = member.windows()
    return window["pinned"]


def _segments_with_windows(harness):
    return [row.id for row in harness.pool_segments() if row.windows]


def test_windows_are_pinned_until_the_last_is_destroyed(harness, member, events):
    """What NCCL refused to make does not live, and what it refused to destroy does; one made before is not counted."""
    create, destroy = harness.create_device_communicator, harness.destroy_device_communicator
    steps = [
        (destroy, 0, 0), (create, 0, 1), (create, REFUSED, 1), (create, 0, 2), (destroy, 0, 1), (destroy, REFUSED, 1),
        (destroy, 0, 0), (create, REFUSED, 0),
    ]  # fmt: skip
    for act, result, lives in steps:
        act(member, result)
        (row,) = harness.communicators()
        assert (_pinned(member), member.device_communicators, row["device_communicators"]) == (lives > 0, lives, lives)
    told = [
        (event["event"], event["ok"], event.get("error"), event["device_communicators"])
        for event in events()
        if event["event"].startswith("device_communicator.")
    ]
    assert told == [
        (f"device_communicator.{'create' if act == create else 'destroy'}", not result, result or None, lives)
        for act, result, lives in steps
    ]


def test_the_end_of_all_graphs_does_not_unpin(harness, member):
    """That a graph no longer uses a window says nothing about kernels of the program."""
    harness.create_device_communicator(member)
    member.unpin()
    assert _pinned(member)


def test_windows_of_other_communicators_are_free(harness, create):
    """A device communicator reaches the windows of its own communicator alone."""
    first, second = create(X), create(Y)
    harness.create_device_communicator(first)
    assert (_pinned(first), _pinned(second)) == (True, False)


def test_a_destroy_leaves_the_windows_to_nccl(harness, member, events):
    """It ends them inside that call; until then their memory stays."""
    harness.create_device_communicator(member)
    held = _segments_with_windows(harness)
    harness.retire(X)
    assert (_segments_with_windows(harness), events("deregister.window")) == (held, [])
    harness.ended(X)
    assert _segments_with_windows(harness) == []


def test_a_destroy_after_the_last_undoes_the_windows(harness, member, events):
    """As without any."""
    harness.create_device_communicator(member)
    harness.destroy_device_communicator(member)
    harness.retire(X)
    assert [event["ok"] for event in events("deregister.window")] == [True]


def test_an_abort_forgets_them(harness, member, events):
    """The memory of the windows is free when the call has returned, and nothing is deregistered."""
    harness.create_device_communicator(member)
    harness.kill(X)
    assert (_segments_with_windows(harness), events("deregister.window")) == ([], [])
    assert harness.communicators() == []

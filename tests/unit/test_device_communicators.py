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


def test_windows_are_pinned_until_the_last_is_destroyed(harness, member):
    """Two live: one that is destroyed leaves the other."""
    assert not _pinned(member)
    for _ in range(2):
        harness.create_device_communicator(member)
    harness.destroy_device_communicator(member)
    assert (_pinned(member), member.device_communicators) == (True, 1)
    harness.destroy_device_communicator(member)
    assert (_pinned(member), member.device_communicators) == (False, 0)


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


def test_one_that_nccl_refused_pins_nothing(harness, member):
    """It does not live."""
    harness.create_device_communicator(member, REFUSED)
    assert (_pinned(member), member.device_communicators) == (False, 0)


def test_one_that_could_not_be_destroyed_lives_on(harness, member):
    """NCCL refused, so kernels may still have it."""
    harness.create_device_communicator(member)
    harness.destroy_device_communicator(member, REFUSED)
    assert member.device_communicators == 1


def test_the_end_of_an_unknown_one_is_not_counted(harness, member):
    """It was made before tracehook was enabled: those made since are all that count."""
    harness.destroy_device_communicator(member)
    harness.create_device_communicator(member)
    assert member.device_communicators == 1


def test_status_has_the_number(harness, member):
    """As each communicator has its own."""
    harness.create_device_communicator(member)
    (row,) = harness.communicators()
    assert row["device_communicators"] == 1


def test_each_is_logged_with_how_many_live(harness, member, events):
    """What NCCL refused has its error."""
    harness.create_device_communicator(member)
    harness.create_device_communicator(member, REFUSED)
    harness.destroy_device_communicator(member)
    told = [
        (event["event"], event["ok"], event.get("error"), event["device_communicators"])
        for event in events()
        if event["event"].startswith("device_communicator.")
    ]
    assert told == [
        ("device_communicator.create", True, None, 1),
        ("device_communicator.create", False, REFUSED, 1),
        ("device_communicator.destroy", True, None, 0),
    ]


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

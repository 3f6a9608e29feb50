"""The windows of a communicator: their numbers, what lies in them, and how collectives used them."""

import pytest

KIB = 1024
SIZE = 8 * KIB
X = 1
OVERRUN = 0xFFFFFFFF
SUM, GATHER = 0, 4


class _Windows:
    """A communicator, and segments of the bank to register with it."""

    def __init__(self, harness, pointer):
        harness.create(pointer)
        self.harness = harness
        self.member = harness.find_communicator(pointer)

    def segment(self, size=SIZE):
        """Return (id, address) of a new segment."""
        address = self.harness.take(1, 0, size)
        return next((row.id, address) for row in self.harness.pool_segments() if row.address == address)

    def add(self, size=SIZE):
        segment, address = self.segment(size)
        self.member.register_windows([segment])
        self.member.confirm_windows()
        return address

    def look(self, send, receive=0, size=16, operation=SUM, **given):
        return self.harness.look(self.member, operation, (send, receive), (size, size), **given)

    def ordinals(self):
        return {row["segment"]: row["ordinal"] for row in self.member.windows()}


@pytest.fixture
def make(harness):
    """Make a communicator with windows; the bank is open."""
    harness.open_bank()
    return lambda pointer=X: _Windows(harness, pointer)


@pytest.fixture
def windows(make):
    """Return a communicator without windows yet."""
    return make()


def test_a_dead_communicator_registers_nothing(windows):
    """After its end every act of a communicator returns, and does nothing."""
    segment, _ = windows.segment()
    windows.harness.kill(X)
    assert windows.member.dead
    assert windows.member.register_windows([segment]) == []
    assert windows.member.confirm_windows() is False
    assert (windows.member.drop_windows(), windows.member.deregister_windows([segment])) == (0, 0)
    assert windows.harness.calls() == []


@pytest.mark.parametrize(
    ("offset", "size", "inside"),
    [
        (0, SIZE, True),
        (0, SIZE + 1, False),
        (16, SIZE - 16, True),
        (16, SIZE - 15, False),
        (SIZE - 1, 1, True),
        (SIZE - 1, 2, False),
        (SIZE, 0, False),
        (SIZE, 1, False),
        (-1, 2, False),
        (0, 0, True),
        (16, (1 << 64) - 16, False),
        (SIZE - 1, (1 << 64) - 1, False),
    ],
)
def test_a_window_covers_what_lies_in_it(windows, offset, size, inside):
    """A range is covered if its first and its last byte are in one window, however long it is."""
    address = windows.add()
    assert windows.member.holds(address + offset, size) is inside


def test_two_windows_side_by_side_are_two(windows):
    """A range from one window into the next is covered by neither."""
    first, second = sorted([windows.add(), windows.add()])
    windows.harness.give_back(windows.segment()[1])
    assert second - first == SIZE
    assert not windows.member.holds(first + SIZE - 1, 2)
    assert windows.look(first + SIZE - 1, size=2)[1] == (OVERRUN, SIZE - 1)


def test_a_place_is_window_and_offset(windows):
    """A place is 1 plus the ordinal and the bytes from the window's first; outside of all windows it is nothing."""
    first, second = windows.add(), windows.add()
    _, send, receive, _ = windows.look(second + 32, first)
    assert (send, receive) == ((2, 32), (1, 0))
    _, send, receive, _ = windows.look(first - 1, 0x10)
    assert (send, receive) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("size", "expected"), [(16, 1), (SIZE - 32, 1), (SIZE - 31, OVERRUN), ((1 << 64) - 1, OVERRUN)]
)
def test_a_buffer_that_leaves_its_window_is_an_overrun(windows, size, expected):
    """A buffer that begins in a window and ends outside it is in none."""
    address = windows.add()
    assert windows.look(address + 32, size=size)[1] == (expected, 32)


@pytest.mark.parametrize(
    ("compare", "offset", "size", "expected"),
    [
        ("where", 32, 16, (1, 32)),
        ("whether", 32, 16, (1, 0)),
        ("whether", 32, SIZE, (OVERRUN, 0)),
        ("whether", SIZE, 16, (0, 0)),
        ("nothing", 32, 16, (0, 0)),
        ("nothing", 32, SIZE, (0, 0)),
    ],
)
def test_only_what_the_operation_compares_is_told(windows, compare, offset, size, expected):
    """The place is reduced to what has to be equal on all ranks."""
    address = windows.add()
    assert windows.look(address + offset, size=size, compare=(compare, "nothing"))[1] == expected


def test_a_use_is_new_once_and_counts_once(windows):
    """It is new until it is accepted, and counts then, and when a call looks for it; other places are other uses."""
    address = windows.add()
    windows.look(address, accept=False)
    assert windows.member.digest() == (0, 0)
    for accept, is_known, uses in ((False, False, 0), (True, False, 1), (True, True, 2), (False, True, 2)):
        assert windows.look(address, accept=accept)[0] is is_known
        assert windows.member.digest()[0] == uses
    assert windows.look(address + 1)[0] is False
    assert windows.look(address, operation=GATHER)[0] is False
    assert windows.look(0, address)[0] is False


def _digest(windows, uses):
    addresses = [windows.add(), windows.add()]
    for which, offset, operation in uses:
        windows.look(addresses[which], addresses[1 - which] + offset, operation=operation)
    return windows.member.digest()


USES = [(0, 0, SUM), (1, 0, SUM), (0, 64, SUM), (0, 0, SUM), (0, 0, GATHER), (1, 128, SUM)]


def test_equal_sequences_have_equal_digests(make):
    """Two communicators whose collectives used the same places in the same order agree, whatever the addresses."""
    assert _digest(make(1), USES) == _digest(make(2), USES)


@pytest.mark.parametrize("swapped", range(len(USES) - 1))
def test_a_swap_shows_in_the_digest(make, swapped):
    """The same uses in another order have another digest."""
    other = list(USES)
    other[swapped], other[swapped + 1] = other[swapped + 1], other[swapped]
    (count, digest), (other_count, other_digest) = _digest(make(1), USES), _digest(make(2), other)
    assert count == other_count
    assert digest != other_digest


@pytest.mark.parametrize("other", [USES[:-1], [*USES, USES[0]], [(1, 0, SUM), *USES[1:]], [*USES[:-1], (1, 129, SUM)]])
def test_another_use_shows_in_the_digest(make, other):
    """One use less, one more, in another window or at another byte is another digest."""
    assert _digest(make(1), USES)[1] != _digest(make(2), other)[1]


def _pinned(windows):
    return {row["segment"]: row["pinned"] for row in windows.member.windows()}


def test_a_capture_pins_its_windows(windows):
    """Both buffers of a captured call keep their windows until all graphs are gone; others are free."""
    first, _, third = windows.add(), windows.add(), windows.add()
    assert windows.look(first, third)[3] is True
    windows.look(first, third, pin=True)
    assert _pinned(windows) == {1: True, 2: False, 3: True}
    windows.member.unpin()
    assert not any(_pinned(windows).values())
    first, second = windows.add(), windows.add()
    windows.look(first, first, pin=True)
    assert windows.look(first, first)[3] is True
    assert windows.look(0, second)[3] is True
    assert windows.look(0, 0)[3] is False

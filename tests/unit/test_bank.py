"""The bank: what a pool's segment becomes when torch gives it back, and who gets it next."""

from typing import NamedTuple

import pytest

from tracehook._testing import Harness
from tracehook.log import records

KIB = 1024
X, Y = 1, 2


class Segment(NamedTuple):
    """A row of ``pool_segments()``."""

    id: int
    pool: int
    owner: int
    device: int
    address: int
    size: int
    retired: bool
    windows: int


@pytest.fixture
def bank(harness):
    """Return a harness whose bank is open, without a limit."""
    harness.open_bank()
    return harness


def _segments(harness):
    return {row.id: Segment(*(getattr(row, name) for name in Segment._fields)) for row in harness.pool_segments()}


def _told(refusal):
    return refusal.count, refusal.device, refusal.wanted, refusal.held, refusal.limit


def _at(harness, address):
    return next(segment for segment in _segments(harness).values() if segment.address == address)


def _take_with_window(harness, pool=1, device=0, size=4 * KIB, pointer=X):
    """Take a segment on which communicator `pointer` has a window; return its address."""
    if harness.find_communicator(pointer) is None:
        harness.create(pointer, device=device)
    address = harness.take(pool, device, size)
    member = harness.find_communicator(pointer)
    assert member.register_windows([_at(harness, address).id]) == [(0, True)]
    assert member.confirm_windows()
    return address


def test_a_new_segment_is_noted(bank):
    """A segment has the pool, owner, device and size that were asked for, and ids count from 1."""
    first, second = bank.take(1, 0, 4 * KIB, 7), bank.take(2, 1, 8 * KIB, 9)
    assert list(_segments(bank).values()) == [
        Segment(1, 1, 7, 0, first, 4 * KIB, False, 0),
        Segment(2, 2, 9, 1, second, 8 * KIB, False, 0),
    ]


def test_without_windows_it_is_returned_at_once(bank):
    """A segment that no communicator has a window on goes back to the driver when torch gives it back."""
    address = bank.take(1, 0, 4 * KIB)
    assert bank.mapped(address)
    assert bank.give_back(address)
    assert (bank.mapped(address), bank.pool_segments()) == (False, [])


def test_foreign_memory_is_left_alone(bank):
    """An address that is not the first of a segment is not the bank's."""
    address = bank.take(1, 0, 4 * KIB)
    assert not bank.give_back(address + 1)
    assert not bank.give_back(0x10)
    assert bank.mapped(address)


def test_with_windows_it_is_kept(bank):
    """A segment with a window is retired: it keeps its memory and its window."""
    address = _take_with_window(bank)
    assert bank.give_back(address)
    segment = _at(bank, address)
    assert (segment.retired, segment.windows, bank.mapped(address)) == (True, 1, True)


def test_the_oldest_equal_one_serves_first(bank):
    """Retired segments serve equal requests in the order in which they were made, not retired."""
    addresses = [_take_with_window(bank) for _ in range(3)]
    for address in (addresses[2], addresses[0], addresses[1]):
        bank.give_back(address)
    assert [bank.take(1, 0, 4 * KIB) for _ in range(3)] == addresses
    assert not any(segment.retired for segment in _segments(bank).values())


def test_a_segment_serves_under_its_own_id(bank):
    """A reused segment keeps its id and its windows, and belongs to who asked last."""
    address = _take_with_window(bank)
    bank.give_back(address)
    assert bank.take(1, 0, 4 * KIB, 5) == address
    assert list(_segments(bank).values()) == [Segment(1, 1, 5, 0, address, 4 * KIB, False, 1)]


@pytest.mark.parametrize(
    ("pool", "device", "size"), [(2, 0, 4 * KIB), (1, 1, 4 * KIB), (1, 0, 8 * KIB), (1, 0, 2 * KIB)]
)
def test_only_an_equal_request_is_served(bank, pool, device, size):
    """Another pool, another device or another size, also a smaller one, gets memory of its own."""
    address = _take_with_window(bank)
    bank.give_back(address)
    assert bank.take(pool, device, size) != address
    assert _at(bank, address).retired


def test_a_segment_in_use_serves_nobody_else(bank):
    """Two equal requests get two segments."""
    assert len({_take_with_window(bank), _take_with_window(bank), bank.take(1, 0, 4 * KIB)}) == 3


# --- release ---


def test_idle_segments_are_released(bank):
    """A retired segment whose last window has gone is released by ``release_idle``, which tells the bytes."""
    addresses = [_take_with_window(bank), _take_with_window(bank, size=8 * KIB)]
    for address in addresses:
        bank.give_back(address)
    assert bank.release_idle() == 0
    assert bank.find_communicator(X).deregister_windows([1, 2]) == 2
    assert bank.release_idle() == 12 * KIB
    assert [bank.mapped(address) for address in addresses] == [False, False]
    assert bank.release_idle() == 0


def test_what_is_in_use_is_not_released(bank):
    """A segment that torch holds stays, with or without a window."""
    address = bank.take(1, 0, 4 * KIB)
    assert bank.release_idle() == 0
    assert bank.mapped(address)


def test_the_last_communicator_decides(bank):
    """A segment with windows of two communicators stays until both have gone."""
    address = _take_with_window(bank)
    bank.create(Y)
    other = bank.find_communicator(Y)
    other.register_windows([1])
    other.confirm_windows()
    bank.give_back(address)
    assert _at(bank, address).windows == 2
    bank.retire(X)
    assert (_at(bank, address).windows, bank.mapped(address)) == (1, True)
    bank.retire(Y)
    assert (bank.pool_segments(), bank.mapped(address)) == ([], False)


def test_an_abort_leaves_idle_segments_to_others(bank):
    """An abort releases nothing; the next equal request, or the next release, gets what it left."""
    kept, released = _take_with_window(bank), _take_with_window(bank, size=8 * KIB)
    bank.give_back(kept)
    bank.give_back(released)
    bank.kill(X)
    assert [segment.windows for segment in _segments(bank).values()] == [0, 0]
    assert bank.take(1, 0, 4 * KIB) == kept
    assert bank.release_idle() == 8 * KIB
    assert bank.mapped(kept)


def test_a_reused_address_is_another_segment(bank):
    """The driver gives an address out again; the id tells the two segments apart."""
    address = bank.take(1, 0, 4 * KIB)
    bank.give_back(address)
    assert bank.take(1, 0, 4 * KIB) == address
    assert list(_segments(bank)) == [2]


# --- refusals ---


@pytest.fixture
def limited(harness):
    """Return a harness whose bank may hold 16 KiB on each device."""
    harness.open_bank(16 * KIB)
    return harness


def test_the_limit_is_what_may_be_held(limited):
    """A request that fills the limit is served, one byte more is refused with the numbers."""
    assert limited.take(1, 0, 12 * KIB)
    assert limited.take(2, 0, 4 * KIB + 1) == 0
    assert _told(limited.last_refusal()) == (1, 0, 4 * KIB + 1, 12 * KIB, 16 * KIB)
    assert limited.take(2, 0, 4 * KIB)


def test_each_device_has_its_own(limited):
    """What one device holds does not count on another."""
    limited.take(1, 0, 16 * KIB)
    assert limited.take(1, 1, 16 * KIB)
    assert limited.last_refusal().count == 0


def test_retired_segments_count(limited):
    """Retired memory is still held; a request that it serves needs no room."""
    address = _take_with_window(limited, size=12 * KIB)
    limited.give_back(address)
    assert limited.take(1, 0, 8 * KIB) == 0
    assert limited.last_refusal().held == 12 * KIB
    assert limited.take(1, 0, 12 * KIB) == address


def test_what_was_returned_does_not_count(limited):
    """Room comes back with the memory."""
    limited.give_back(limited.take(1, 0, 16 * KIB))
    assert limited.take(1, 0, 16 * KIB)


def test_an_immense_request_is_refused(limited):
    """A size near the largest number does not wrap around the limit."""
    limited.take(1, 0, 8 * KIB)
    assert limited.take(1, 0, (1 << 64) - 4 * KIB) == 0
    assert limited.last_refusal().wanted == (1 << 64) - 4 * KIB


def test_a_device_without_memory_is_told_apart(limited):
    """When the device itself has no memory left the refusal names no limit, and nothing stays counted."""
    Harness.set_out_of_memory(True)
    try:
        assert limited.take(1, 0, 4 * KIB) == 0
    finally:
        Harness.set_out_of_memory(False)
    assert _told(limited.last_refusal()) == (1, 0, 4 * KIB, 0, 0)
    assert limited.take(1, 0, 16 * KIB)


def test_refusals_are_counted(limited):
    """The count tells a new refusal from an old one."""
    for _ in range(3):
        limited.take(1, 0, 17 * KIB)
    assert limited.last_refusal().count == 3


# --- the log ---


def test_the_life_of_a_segment_is_logged(bank):
    """Growing, retiring, reusing and shrinking each leave an event with the pool and the bytes held then."""
    address = _take_with_window(bank, pool=3)
    bank.take(3, 0, 8 * KIB)
    bank.give_back(address)
    bank.take(3, 0, 4 * KIB)
    bank.give_back(address)
    bank.retire(X)
    rows = map(records.fields_of, records.unpack(bank.peek(1 << 12)))
    assert [
        (name, fields["pool_segment"], fields["pool"], fields["pool_bytes"], fields["size"])
        for name, fields in rows
        if name.startswith(("pool.", "segment."))
    ] == [
        ("pool.grow", 1, 3, 4 * KIB, 4 * KIB),
        ("pool.grow", 2, 3, 12 * KIB, 8 * KIB),
        ("segment.retire", 1, 3, 12 * KIB, 4 * KIB),
        ("segment.reuse", 1, 3, 12 * KIB, 4 * KIB),
        ("segment.retire", 1, 3, 12 * KIB, 4 * KIB),
        ("pool.shrink", 1, 3, 8 * KIB, 4 * KIB),
    ]

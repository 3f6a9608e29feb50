"""The bank, beside what its random histories show (test_bank_state_machine.py)."""

import pytest

from tracehook._testing import Harness
from tracehook.log import records

KIB = 1024
X = 1


@pytest.fixture
def bank(harness):
    """Return a harness whose bank is open, without a limit."""
    harness.open_bank()
    return harness


def test_foreign_memory_is_left_alone(bank):
    """An address that is not the first of a segment is not the bank's."""
    address = bank.take(1, 0, 4 * KIB)
    assert not bank.give_back(address + 1)
    assert not bank.give_back(0x10)
    assert bank.mapped(address)


@pytest.fixture
def limited(harness):
    """Return a harness whose bank may hold 16 KiB on each device."""
    harness.open_bank(16 * KIB)
    return harness


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
    told = limited.last_refusal()
    assert (told.count, told.device, told.wanted, told.held, told.limit) == (1, 0, 4 * KIB, 0, 0)
    assert limited.take(1, 0, 16 * KIB)


def test_the_life_of_a_segment_is_logged(bank):
    """Growing, retiring, reusing and shrinking each leave an event with the pool and the bytes held then."""
    bank.create(X)
    address = bank.take(3, 0, 4 * KIB)
    member = bank.find_communicator(X)
    assert member.register_windows([1]) == [(0, True)]
    assert member.confirm_windows()
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

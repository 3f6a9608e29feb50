"""What is held for peers: a storage until nobody wants it, a segment until nobody has it mapped."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from tracehook.errors import PeerError
from tracehook.ipc import exports, wire
from tracehook.ipc.exports import Exports
from tracehook.ipc.journal import Journal
from tracehook.ipc.wire import Kind


class Native:
    """Segments of this test's choosing around memory of the CPU."""

    def __init__(self):
        self.segments = {}  # by address of a tensor: what segment_of() says
        self.kind = 1
        self.logged = []
        self.exported = 0

    def place(self, tensor, segment, kind="segment"):
        """Let a tensor lie in the middle of a segment."""
        self.segments[tensor.data_ptr()] = (kind, segment, tensor.data_ptr() - 4096, 1 << 20, 0)
        return tensor

    def segment_of(self, address):
        """Return what the bank or the ledger would say."""
        return self.segments.get(address)

    def export_segment(self, _base, size, _device):
        """Return a handle."""
        self.exported += 1
        return (self.kind, size, b"h" * 64)

    def export_file(self, _base):
        """Return a new descriptor."""
        return os.open("/dev/null", os.O_RDONLY)

    def log(self, event, _comm, _rank, peer, **fields):
        """Keep what would go into the ring."""
        self.logged.append((event, peer, fields["generation"]))


class Link:
    """Keeps what is sent to one peer."""

    def __init__(self, peer):
        self.peer = peer
        self.sent = []

    def send(self, data, files=(), _timeout=0):
        """Keep the head, and how many descriptors came with it."""
        head = wire.unpack_head(data)
        self.sent.append((Kind(head.kind), head.number, len(files)))

    def try_send(self, data):
        """Likewise."""
        self.send(data)

    def take(self):
        """Return what was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def native(monkeypatch):
    """Stand in for the native side."""
    made = Native()
    monkeypatch.setattr(exports, "native", made)
    monkeypatch.setattr("tracehook.ipc.journal.native", made)
    monkeypatch.setattr(exports, "_check", lambda *_: None)
    return made


@pytest.fixture
def table(native):  # noqa: ARG001
    """Return what one process has offered: nothing yet."""
    return Exports()


def peer(table, rank):
    """Return a link to a peer that may be offered to."""
    link = Link(rank)
    table.join(link, Journal(1, 0))
    return link


def give(table, link, *tensors, number=1):
    """Offer tensors to a peer; return the records."""
    prepared = [table.prepare(tensor, 0, writable=False) for tensor in tensors]
    ((data, offers),) = wire.exchange_messages(number, 2, [offer for _, offer in prepared])
    table.send(link, data, offers, [loan for loan, _ in prepared], 1.0)
    return offers


def test_a_tensor_is_named_by_its_offset_in_a_segment(table, native):
    """The handle is the segment's, made once; two tensors of one storage are one loan."""
    one = peer(table, 1)
    whole = native.place(torch.zeros(100), 5)
    part = whole[10:20:2]
    native.segments[part.data_ptr()] = native.segments[whole.data_ptr()]
    first, second = give(table, one, whole, part)
    assert (first.export, first.loan, first.segment) == (second.export, second.loan, 5)
    assert (first.offset, second.offset) == (4096, 4096 + 40)
    assert (second.shape, second.strides, second.nbytes) == ((5,), (2,), 36)
    assert (native.exported, table.held()) == (1, (1, 1))
    assert native.logged == [("ipc.export", 1, first.export)]


def test_a_descriptor_goes_once_to_each_peer(table, native):
    """The owner knows what its peers have, because only its own request makes them unmap it."""
    native.kind = exports.FILE
    one, two = peer(table, 1), peer(table, 2)
    tensor = native.place(torch.zeros(4), 5, "pool")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for link in (one, one, two):
        (offer,) = give(table, link, tensor)
        assert offer.flags & wire.Flag.POOL
    assert ([files for *_, files in one.take()], [files for *_, files in two.take()]) == ([1, 0], [1])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    table.unopened(one, offer.export)
    give(table, one, tensor)
    assert [files for *_, files in one.take()] == [1], "a peer that failed to map it gets it again"


def test_memory_is_held_until_the_peers_have_closed_it(table, native):
    """The last tensor is dropped here: peers are asked, and the storage stays until all have answered."""
    one, two = peer(table, 1), peer(table, 2)
    tensor = native.place(torch.zeros(4), 5)
    for link in (one, two):
        (offer,) = give(table, link, tensor)
        link.take()
    table.sweep()
    assert (one.take(), table.held()) == ([], (1, 1)), "it is wanted"
    del tensor
    table.sweep()
    table.sweep()
    assert one.take() == two.take() == [(Kind.CLOSE, offer.export, 0)], "asked once"
    table.closed(one, offer.export)
    assert table.held() == (1, 1)
    assert not table.outstanding(one)
    table.closed(two, offer.export)
    assert table.held() == (0, 0)
    assert [event for event, *_ in native.logged] == ["ipc.export"] * 2 + ["ipc.release"] * 2


def test_one_of_two_tensors_of_a_segment_ends(table, native):
    """While another is wanted the segment stays mapped, and the storage that is not is given back on its own."""
    one = peer(table, 1)
    memory = bytearray(4096)  # so that the second lies behind the first
    kept, dropped = (native.place(torch.frombuffer(memory, dtype=torch.uint8, offset=at), 5) for at in (0, 2048))
    native.segments[dropped.data_ptr()] = native.segments[kept.data_ptr()]
    _, offer = give(table, one, kept, dropped)
    one.take()
    del dropped
    table.sweep()
    assert one.take() == [(Kind.RETIRE, offer.loan, 0)]
    assert table.held() == (1, 2)
    table.returned(one, offer.loan)
    assert table.held() == (1, 1)


def test_a_segment_that_is_offered_again_is_another_export(table, native):
    """What peers are closing is not offered from any more: they map it anew."""
    one = peer(table, 1)
    tensor = native.place(torch.zeros(4), 5)
    (before,) = give(table, one, tensor)
    assert table.release(tensor)
    assert not table.release(tensor)
    (after,) = give(table, one, tensor)
    assert (after.segment, after.loan > before.loan, after.export > before.export) == (5, True, True)
    assert table.held() == (2, 2)
    table.closed(one, before.export)
    assert table.held() == (1, 1)


def test_the_end_of_a_peer_frees_what_it_had(table, native):
    """A dead peer answers no request: what only it had is dropped at once, wanted or not, and can be offered anew."""
    one, two = peer(table, 1), peer(table, 2)
    shared, alone = native.place(torch.zeros(4), 5), native.place(torch.zeros(4), 6)
    give(table, one, shared, alone)
    give(table, two, shared)
    table.forget(one)
    assert table.held() == (1, 1)
    give(table, two, alone)
    assert table.held() == (2, 2)


@pytest.mark.parametrize("holder", ["view", "storage"])
def test_who_counts_as_a_user(table, native, holder):
    """A view, and the storage object itself, keep memory as a tensor does."""
    one = peer(table, 1)
    tensor = native.place(torch.zeros(4), 5)
    (offer,) = give(table, one, tensor)
    one.take()
    user = [tensor[1:] if holder == "view" else tensor.untyped_storage()]
    del tensor
    table.sweep()
    assert one.take() == []
    user.clear()
    table.sweep()
    assert one.take() == [(Kind.CLOSE, offer.export, 0)]


def test_a_storage_that_is_resized_has_lost_its_memory(table, native):
    """Its old memory is with the allocator again and cannot be held: the peers are asked at once."""
    one = peer(table, 1)
    tensor = native.place(torch.zeros(4), 5)
    (offer,) = give(table, one, tensor)
    one.take()
    tensor.untyped_storage().resize_(1 << 20)
    table.sweep()
    assert one.take() == [(Kind.CLOSE, offer.export, 0)]


def test_memory_of_no_known_segment(table, monkeypatch):
    """Its address, and what it may be, are said; with expandable segments, that these are the cause."""
    said = defaultdict(bool)
    monkeypatch.setattr(exports._core, "describe_allocator", lambda: said)
    with pytest.raises(PeerError, match="is of no segment that tracehook knows: it is a peer's"):
        table.prepare(torch.zeros(4), 0, writable=False)
    said["expandable_segments"] = True
    with pytest.raises(PeerError, match="expandable segments cannot be shared; unset"):
        table.prepare(torch.zeros(4), 0, writable=False)


def test_a_tensor_without_elements_needs_no_memory(table):
    """It has no segment, no loan and no handle."""
    loan, offer = table.prepare(torch.zeros(0, 3), 0, writable=True)
    assert (loan, offer.export, offer.nbytes, offer.shape) == (None, 0, 0, (0, 3))

"""What is held for peers: a storage until nobody wants it, a segment until nobody has it mapped.

That memory stays until all peers have closed it is in tests/rehearsal/test_peers.py.
"""

import os
from pathlib import Path

import pytest
import torch

from tracehook.errors import PeerError
from tracehook.ipc import exports, wire
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.exports import Exports
from tracehook.ipc.wire import Kind


class _Native:
    """Segments of this test's choosing around memory of the CPU."""

    def __init__(self):
        self.segments = {}  # by address of a tensor: what segment_of() says
        self.kind = 1
        self.logged = []

    def place(self, tensor, segment, kind="segment"):
        """Let a tensor lie in the middle of a segment."""
        self.segments[tensor.data_ptr()] = (kind, segment, tensor.data_ptr() - 4096, 1 << 20, 0)
        return tensor

    def segment_of(self, address):
        return self.segments.get(address)

    def has_handles(self, _address):
        return False

    def export_memory(self, address, size, _device):
        return (self.kind, address, size, size, b"h" * 64)

    def export_files(self, _base, _allocation, count):
        return [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]

    def push(self, event, **members):
        self.logged.append((event, members["peer"], members["generation"]))


class _Link:
    """Keeps what is sent to one peer."""

    def __init__(self, peer):
        self.peer = peer
        self.ended = None
        self.sent = []

    def send(self, data, files=(), _timeout=0):
        """Keep the head, and how many descriptors came with it."""
        head = wire.unpack_head(data)
        self.sent.append((Kind(head.kind), head.number, len(files)))

    def try_send(self, data):
        self.send(data)

    def take(self):
        """Return what was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def native(monkeypatch):
    """Stand in for the native side."""
    made = _Native()
    monkeypatch.setattr(exports, "native", made)
    monkeypatch.setattr("tracehook.ipc.events._core", made)
    monkeypatch.setattr(exports, "_check", lambda *_: None)
    return made


@pytest.fixture
def table(native):  # noqa: ARG001
    """Return what one process has offered: nothing yet."""
    return Exports(lambda _: False)


def peer(table, rank):
    """Return a link to a peer that may be offered to."""
    link = _Link(rank)
    table.add_link(link, PeerEvents(1, 0))
    return link


def give(table, link, *tensors, number=1):
    """Offer tensors to a peer; return the records."""
    prepared = [table.prepare(tensor, 0, writable=False) for tensor in tensors]
    offers = [offer for _, offer in prepared]
    ((data, _),) = wire.exchange_messages(number, 2, offers)
    table.send(link, data, [loan for loan, _ in prepared], 1.0)
    return offers


def test_a_descriptor_goes_once_to_each_peer(table, native):
    """The owner knows what its peers have, because only its own request makes them unmap it."""
    native.kind = wire.HandleKind.FILE
    one, two = peer(table, 1), peer(table, 2)
    tensor = native.place(torch.zeros(4), 5, "pool")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for link in (one, one, two):
        (offer,) = give(table, link, tensor)
        assert offer.flags & wire.Flag.POOL
    handles, exchange = (Kind.HANDLES, offer.export, 1), (Kind.EXCHANGE, 1, 0)
    assert (one.take(), two.take()) == ([handles, exchange, exchange], [handles, exchange])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    table.on_not_mapped(one, offer.export)
    give(table, one, tensor)
    assert one.take() == [handles, exchange], "a peer that failed to map it gets it again"


def test_one_of_two_tensors_of_a_segment_ends(table, native):
    """While another is wanted the segment stays mapped, and the storage that is not is given back on its own."""
    one = peer(table, 1)
    memory = bytearray(4096)  # so that the second lies behind the first
    kept, dropped = (native.place(torch.frombuffer(memory, dtype=torch.uint8, offset=at), 5) for at in (0, 2048))
    native.segments[dropped.data_ptr()] = native.segments[kept.data_ptr()]
    _, offer = give(table, one, kept, dropped)
    one.take()
    del dropped
    table.recall_unused()
    assert one.take() == [(Kind.RECALL, offer.loan, 0)]
    assert table.held() == (1, 2)
    table.on_returned(one, offer.loan)
    assert table.held() == (1, 1)


def test_a_segment_that_is_offered_again_is_another_export(table, native):
    """What peers are closing is not offered from any more: they map it anew."""
    one = peer(table, 1)
    tensor = native.place(torch.zeros(4), 5)
    (before,) = give(table, one, tensor)
    assert table.recall(tensor)
    assert not table.recall(tensor)
    (after,) = give(table, one, tensor)
    assert (after.segment, after.loan > before.loan, after.export > before.export) == (5, True, True)
    assert table.held() == (2, 2)
    table.on_unmapped(one, before.export)
    assert table.held() == (1, 1)


def test_the_end_of_a_peer_frees_what_it_had(table, native):
    """A dead peer answers no request: what only it had is dropped at once, wanted or not, and can be offered anew."""
    one, two = peer(table, 1), peer(table, 2)
    shared, alone = native.place(torch.zeros(4), 5), native.place(torch.zeros(4), 6)
    give(table, one, shared, alone)
    give(table, two, shared)
    table.drop_link(one)
    assert table.held() == (1, 1)
    give(table, two, alone)
    assert table.held() == (2, 2)


@pytest.mark.parametrize("ends", ["view", "storage", "resized"])
def test_memory_is_wanted_as_long_as_somebody_uses_it(table, native, ends):
    """A view, and the storage object, keep memory as a tensor does; a storage that is resized has lost it at once."""
    one = peer(table, 1)
    tensor = native.place(torch.zeros(4), 5)
    (offer,) = give(table, one, tensor)
    one.take()
    if ends == "resized":
        tensor.untyped_storage().resize_(1 << 20)
    else:
        user = [tensor[1:] if ends == "view" else tensor.untyped_storage()]
        del tensor
        table.recall_unused()
        assert one.take() == []
        user.clear()
    table.recall_unused()
    assert one.take() == [(Kind.UNMAP, offer.export, 0)]


def test_memory_that_cannot_be_shared(table):
    """Its address, and what it is, are said: a peer's, or made by nobody whose memory can be mapped elsewhere."""
    with pytest.raises(PeerError, match=r"\(0x.*\) was made neither by torch's caching allocator nor by cuMemCreate"):
        table.prepare(torch.zeros(4), 0, writable=False)
    table_of_a_peer = Exports(lambda _: True)
    with pytest.raises(PeerError, match=r"is a peer's\. Share it from its owner"):
        table_of_a_peer.prepare(torch.zeros(4), 0, writable=False)

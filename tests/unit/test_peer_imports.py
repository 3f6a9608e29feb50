"""What is mapped of peers: each segment once, until its owner wants it back and no tensor lies on it."""

from __future__ import annotations

import threading

import pytest
import torch

from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.ipc import imports, tensor, wire
from tracehook.ipc.imports import Imports
from tracehook.ipc.journal import Journal
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.wire import Flag, Kind, Offer

OFFER = Offer(1, 5, 7, 1 << 20, 4096, 16, 1, 7, 0, b"h" * 64, (4,), (1,))
GONE = PeerTensorGone("it is wanted back")


class Mapping:
    """A segment that was mapped."""

    def __init__(self, native, size, device, writable):
        self.native, self.size, self.device, self.writable = native, size, device, writable
        self.address = 0x1000 * (len(native.opened) + 1)
        native.opened.append(self)

    def allow_writes(self):
        """Map it for writing too."""
        self.writable = True

    def close(self):
        """Unmap it."""
        self.native.closed.append(self)


class Leases:
    """How many tensors the test says there are."""

    def __init__(self):
        self.count = 0

    def lend(self, _address, size, _device):
        """Return what stands in for a tensor's memory."""
        self.count += 1
        return torch.zeros(size, dtype=torch.uint8)


class Native:
    """Stands in for the native side. The device is busy while `idle` is not set."""

    def __init__(self):
        self.opened, self.closed, self.logged = [], [], []
        self.idle = threading.Event()
        self.idle.set()
        self.waits = 0
        self.problem = None
        self.Leases = Leases

    def open_runtime(self, _handle, size, device):
        """Map a segment of cudaMalloc."""
        if self.problem is not None:
            raise self.problem
        return Mapping(self, size, device, True)

    def wait_for_device(self, _device):
        """Wait for the device's work."""
        self.waits += 1
        assert self.idle.wait(10)

    def log(self, event, _comm, _rank, _peer, **fields):
        """Keep what would go into the ring."""
        self.logged.append((event, fields.get("result", 0)))


class Arrivals:
    """Stands in for handles that have come over a link; those of export 2 have not."""

    def __init__(self, native):
        self.native, self.dropped, self.is_closed = native, [], False

    def open(self, offer):
        """Map what came."""
        if offer.export == 2:
            raise PeerError("its handles did not arrive")
        return Mapping(self.native, offer.size, 0, bool(offer.flags & Flag.WRITABLE))

    def drop(self, export):
        """Note that it is not needed."""
        self.dropped.append(export)

    def close(self):
        """Note that nothing more is wanted."""
        self.is_closed = True


class Link:
    """Keeps what is sent to one peer."""

    def __init__(self, peer=1, life=99):
        self.peer, self.life = peer, life
        self.arrivals = Arrivals(imports.native)
        self.ended = None
        self.sent = []

    def try_send(self, data):
        """Keep it."""
        head = wire.unpack_head(data)
        self.sent.append((Kind(head.kind), head.number))

    def lost(self):
        """Return the exception for its end."""
        return PeerLost("ended", self.peer)


@pytest.fixture
def native(monkeypatch):
    """Stand in for the native side."""
    made = Native()
    monkeypatch.setattr(imports, "native", made)
    monkeypatch.setattr("tracehook.ipc.journal.native", made)
    monkeypatch.setattr(imports._core, "capturing", lambda _: made.capturing)
    monkeypatch.setattr(tensor, "from_dlpack", lambda capsule: capsule)
    made.capturing = False
    return made


@pytest.fixture
def table(native, monkeypatch):  # noqa: ARG001
    """Return what one process has mapped: nothing yet."""
    made = Imports()
    monkeypatch.setattr(imports, "IMPORTS", made)
    return made


def borrow(table, link, offer=OFFER):
    """Take an offer; return what its tensors share."""
    return table.borrow(link, Journal(1, 0), offer, 0)


def on(borrowed, offer=OFFER):
    """Return a peer's tensor."""
    return PeerTensor(1, offer, borrowed, torch.device("cpu"))


def test_a_segment_is_mapped_once(table, native):
    """For all its loans and all groups of the process; another export of the same segment is another mapping."""
    one, other_group = Link(), Link()
    first = borrow(table, one)
    assert borrow(table, one) is first
    assert borrow(table, one, OFFER._replace(loan=8)).mapped is first.mapped
    assert borrow(table, other_group).mapped is first.mapped
    assert len(native.opened) == 1
    assert borrow(table, one, OFFER._replace(export=2)).mapped is not first.mapped
    assert borrow(table, Link(life=98)).mapped is not first.mapped, "the process of that rank is another"
    assert len(native.opened) == 3
    assert other_group.arrivals.dropped == [1], "handles that came over the other link are let go of"


def test_it_is_unmapped_when_no_tensor_lies_on_it(table, native, until):
    """After its owner asked, new tensors are refused; the answer comes when the last old one is gone."""
    link = Link()
    borrowed = borrow(table, link)
    there = on(borrowed)
    kept = there.get(torch.zeros(4))
    shown = there.tensor
    table.close(link, 1, GONE)
    with pytest.raises(PeerTensorGone, match="wanted back"):
        there.get()
    table.sweep()
    assert (native.waits, native.closed, link.sent) == (0, [], []), "a tensor of the program may still be on it"
    borrowed.leases.count = 0
    table.sweep()
    until(lambda: link.sent)
    assert link.sent == [(Kind.CLOSED, 1)]
    assert (native.closed, native.waits, table.mapped()) == (native.opened, 1, 0)
    assert native.logged == [("ipc.open", 0), ("ipc.close", 0)]
    del kept, shown


def test_nobody_waits_for_the_device_but_a_thread_of_its_own(table, native, until):
    """The device's work may wait for the very peer that waits for this rank's next call."""
    link = Link()
    on(borrow(table, link)).get(torch.zeros(4))
    table.close(link, 1, GONE)
    native.idle.clear()
    next(iter(table._ending)).leases.count = 0
    table.sweep()
    until(lambda: native.waits == 1)
    table.sweep()
    assert (native.waits, link.sent) == (1, [])
    native.idle.set()
    until(lambda: link.sent)


def test_one_loan_is_returned(table, native, until):
    """The segment stays mapped for the others; what was never used is returned without a wait."""
    link = Link()
    used, unused = borrow(table, link), borrow(table, link, OFFER._replace(loan=8))
    there = on(used)
    there.get(torch.zeros(4))
    table.retire(link, 8, GONE)
    table.sweep()
    assert (link.sent, native.waits) == ([(Kind.RETURNED, 8)], 0)
    table.retire(link, 7, GONE)
    used.leases.count = 0
    table.sweep()
    until(lambda: len(link.sent) == 2)
    assert link.sent[1] == (Kind.RETURNED, 7)
    assert (native.closed, native.waits) == ([], 1)
    assert unused.gone is not None


def test_requests_for_what_is_not_here_are_answered(table):
    """An owner that asks for what could not be mapped, or was closed before, need not wait."""
    link = Link()
    table.retire(link, 7, GONE)
    table.close(link, 1, GONE)
    assert link.sent == [(Kind.RETURNED, 7), (Kind.CLOSED, 1)]


def test_the_end_of_one_of_two_groups(table, native):
    """Its tensors are gone, its owner hears so, and the segment stays mapped for the other group."""
    one, two = Link(), Link()
    mine, theirs = on(borrow(table, one)), on(borrow(table, two))
    table.forget(one, PeerTensorGone("it was closed"))
    with pytest.raises(PeerTensorGone, match="it was closed"):
        mine.get()
    assert (one.arrivals.is_closed, two.arrivals.is_closed) == (True, False)
    table.sweep()
    assert (one.sent, two.sent, native.closed) == ([(Kind.CLOSED, 1)], [], [])
    theirs.get(torch.zeros(4))
    assert (table.outstanding([one]), table.outstanding([two])) == (False, True)


def test_a_dead_peer(table, native, until):
    """Its tensors say so; its memory is unmapped like any other."""
    link = Link()
    there = on(borrow(table, link))
    table.forget(link, PeerLost("the process of rank 1 has ended", 1))
    with pytest.raises(PeerLost) as caught:
        there.get()
    assert caught.value.peer == 1
    table.sweep()
    until(lambda: native.closed)


def test_nothing_is_done_during_a_capture(table, native, until):
    """A wait for the device would end it; afterwards the same is done."""
    link = Link()
    borrow(table, link)
    table.close(link, 1, GONE)
    native.capturing = True
    table.sweep()
    assert (native.waits, native.closed) == (0, [])
    native.capturing = False
    table.sweep()
    until(lambda: native.closed)


def test_a_segment_that_cannot_be_mapped(table, native):
    """The owner hears that it is not here, the log has the error's number, and the next offer tries again."""
    link = Link()
    native.problem = RuntimeError("cudaIpcOpenMemHandle: cudaErrorMapBufferObjectFailed (205)")
    native.problem.code = 205
    with pytest.raises(PeerError, match=r"rank 1 \(1048576 bytes\) cannot be mapped: cudaIpcOpenMemHandle"):
        borrow(table, link)
    assert (link.sent, native.logged) == ([(Kind.UNOPENED, 1)], [("ipc.open", 205)])
    native.problem = None
    borrow(table, link)
    with pytest.raises(PeerError, match="its handles did not arrive"):
        borrow(table, link, OFFER._replace(export=2, handle_kind=2))


def test_a_segment_is_mapped_for_writing_when_it_is_first_wanted(table, native):
    """Until its owner lets a tensor of it be written, a descriptor is mapped for reading only."""
    link = Link()
    offer = OFFER._replace(handle_kind=2)
    assert not borrow(table, link, offer).mapped.mapping.writable
    assert borrow(table, link, offer._replace(flags=int(Flag.WRITABLE))).mapped.mapping.writable
    assert len(native.opened) == 1


def test_a_reader_may_not_write(table):
    """Neither through put() nor through the torch tensor, its views, or `out=`; its results are ordinary tensors."""
    there = on(borrow(table, Link()))
    shown = there.tensor
    for write in (
        lambda: there.put(torch.ones(4)),
        lambda: shown.add_(1),
        lambda: shown[1:].zero_(),
        lambda: shown.__setitem__(0, 1.0),
        lambda: torch.add(torch.ones(4), 1, out=shown),
        lambda: torch._foreach_add_([shown], 1),
        lambda: shown.resize_(2),
    ):
        with pytest.raises(PeerError, match="reading only"):
            write()
    assert type(shown + 1) is torch.Tensor
    assert (shown + 1).tolist() == [1.0] * 4
    assert shown.tolist() == [0.0] * 4
    assert "ReadOnlyTensor(tensor(" in repr(shown)


def test_a_tensor_of_a_type_that_this_torch_lacks(table, monkeypatch):
    """The peer's torch is newer: the type is named."""
    monkeypatch.setattr(wire, "DTYPES", ("float2_of_the_future",) * 8)
    with pytest.raises(PeerError, match=r"rank 1 shares a tensor of torch\.float2_of_the_future"):
        on(borrow(table, Link()))

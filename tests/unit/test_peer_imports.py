"""What is mapped of peers: each segment once, until its owner wants it back.

That it stays while a tensor lies on it, or a capture is under way, is in tests/rehearsal/test_peers.py.
"""

import threading

import pytest
import torch

from tracehook import _core
from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.ipc import imports, tensor, wire
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.imports import Imports
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.wire import Flag, Kind, Offer

OFFER = Offer(1, 5, 7, 1 << 20, 4096, 16, 1, 7, 0, b"h" * 64, (4,), (1,))
GONE = PeerTensorGone("it is wanted back")


class _Mapping:
    """A segment that was mapped."""

    def __init__(self, native, size, device, writable):
        self.native, self.size, self.device, self.writable = native, size, device, writable
        self.address = 0x1000 * (len(native.opened) + 1)
        native.opened.append(self)

    def allow_writes(self):
        self.writable = True

    def unmap(self):
        self.native.closed.append(self)


class _Leases:
    """How many tensors the test says there are."""

    def __init__(self):
        self.count = 0

    def lend(self, _address, size, _device):
        self.count += 1
        return torch.zeros(size, dtype=torch.uint8)


class _Native:
    """Stands in for the native side. The device is busy while `idle` is not set."""

    def __init__(self):
        self.opened, self.closed, self.logged = [], [], []
        self.idle = threading.Event()
        self.idle.set()
        self.waits = 0
        self.problem = None
        self.Leases = _Leases

    def map_runtime(self, _handle, size, device):
        if self.problem is not None:
            raise self.problem
        return _Mapping(self, size, device, True)

    def wait_for_device(self, _device):
        self.waits += 1
        assert self.idle.wait(10)

    def push(self, event, **members):
        self.logged.append((event, members["result"]))


class _ReceivedHandles:
    """Stands in for handles that have come over a link; those of export 2 have not."""

    def __init__(self, native):
        self.native, self.released, self.is_closed = native, [], False

    def map(self, offer):
        if offer.export == 2:
            raise PeerError("its handles did not arrive")
        return _Mapping(self.native, offer.size, 0, bool(offer.flags & Flag.WRITABLE))

    def release(self, export):
        self.released.append(export)

    def close(self):
        self.is_closed = True


class _Link:
    """Keeps what is sent to one peer."""

    def __init__(self, peer=1, life=99):
        self.peer, self.life = peer, life
        self.handles = _ReceivedHandles(imports.native)  # type: ignore[attr-defined]  # what the fixture put there
        self.ended = None
        self.sent = []

    def try_send(self, data):
        head = wire.unpack_head(data)
        self.sent.append((Kind(head.kind), head.number))

    def lost_error(self):
        return PeerLost("ended", self.peer)


@pytest.fixture
def native(monkeypatch):
    """Stand in for the native side."""
    made = _Native()
    monkeypatch.setattr(imports, "native", made)
    monkeypatch.setattr("tracehook.ipc.events._core", made)
    monkeypatch.setattr(_core, "capturing", lambda _: False)
    monkeypatch.setattr(tensor, "from_dlpack", lambda capsule: capsule)
    return made


@pytest.fixture
def table(native):  # noqa: ARG001
    """Return what one process has mapped: nothing yet."""
    return Imports()


def map_loan(table, link, offer=OFFER):
    """Take an offer; return what its tensors share."""
    return table.map_loan(link, PeerEvents(1, 0), offer, 0)


def on(loan, offer=OFFER):
    """Return a peer's tensor."""
    return PeerTensor(1, offer, loan, torch.device("cpu"))


def test_a_segment_is_mapped_once(table, native):
    """For all its loans and all groups of the process; another export of the same segment is another mapping."""
    one, other_group = _Link(), _Link()
    first = map_loan(table, one)
    assert map_loan(table, one) is first
    assert map_loan(table, one, OFFER._replace(loan=8)).imported is first.imported
    assert map_loan(table, other_group).imported is first.imported
    assert len(native.opened) == 1
    assert map_loan(table, one, OFFER._replace(export=2)).imported is not first.imported
    assert map_loan(table, _Link(life=98)).imported is not first.imported, "the process of that rank is another"
    assert len(native.opened) == 3
    assert other_group.handles.released == [1], "handles that came over the other link are released"


def test_nobody_waits_for_the_device_but_a_thread_of_its_own(table, native, until):
    """The device's work may wait for the very peer that waits for this rank's next call."""
    link = _Link()
    on(map_loan(table, link)).get(torch.zeros(4))
    table.on_unmap_request(link, 1, GONE)
    native.idle.clear()
    next(iter(table._recalled)).leases.count = 0
    table.return_unused()
    until(lambda: native.waits == 1)
    table.return_unused()
    assert (native.waits, link.sent) == (1, [])
    native.idle.set()
    until(lambda: link.sent)


def test_one_loan_is_returned(table, native, until):
    """The segment stays mapped for the others; what was never used is returned without a wait."""
    link = _Link()
    used, unused = map_loan(table, link), map_loan(table, link, OFFER._replace(loan=8))
    there = on(used)
    there.get(torch.zeros(4))
    table.on_recall(link, 8, GONE)
    table.return_unused()
    assert (link.sent, native.waits) == ([(Kind.RETURNED, 8)], 0)
    table.on_recall(link, 7, GONE)
    used.leases.count = 0
    table.return_unused()
    until(lambda: len(link.sent) == 2)
    assert link.sent[1] == (Kind.RETURNED, 7)
    assert (native.closed, native.waits) == ([], 1)
    assert unused.gone is not None


def test_the_end_of_one_of_two_groups(table, native):
    """Its tensors are gone, its owner hears so, and the segment stays mapped for the other group."""
    one, two = _Link(), _Link()
    mine, theirs = on(map_loan(table, one)), on(map_loan(table, two))
    table.mark_unwanted(one, PeerTensorGone("it was closed"))
    with pytest.raises(PeerTensorGone, match="it was closed"):
        mine.get()
    assert (one.handles.is_closed, two.handles.is_closed) == (True, False)
    table.return_unused()
    assert (one.sent, two.sent, native.closed) == ([(Kind.UNMAPPED, 1)], [], [])
    theirs.get(torch.zeros(4))
    assert (table.has_mapped([one]), table.has_mapped([two])) == (False, True)


def test_a_segment_that_cannot_be_mapped(table, native):
    """Its owner hears so, and need not wait when it asks; the next offer tries again; the log has the error."""
    link = _Link()
    native.problem = RuntimeError("cudaIpcOpenMemHandle: cudaErrorMapBufferObjectFailed (205)")
    native.problem.code = 205
    with pytest.raises(PeerError, match=r"rank 1 \(1048576 bytes\) cannot be mapped: cudaIpcOpenMemHandle"):
        map_loan(table, link)
    assert (link.sent, native.logged) == ([(Kind.NOT_MAPPED, 1)], [("ipc.open", 205)])
    native.problem = None
    map_loan(table, link)
    with pytest.raises(PeerError, match="its handles did not arrive"):
        map_loan(table, link, OFFER._replace(export=2, handle_kind=2))
    another = _Link(life=98)
    table.on_recall(another, 7, GONE)
    table.on_unmap_request(another, 1, GONE)
    assert another.sent == [(Kind.RETURNED, 7), (Kind.UNMAPPED, 1)]


def test_a_segment_is_mapped_for_writing_when_it_is_first_wanted(table, native):
    """Until its owner lets a tensor of it be written, a descriptor is mapped for reading only."""
    link = _Link()
    offer = OFFER._replace(handle_kind=2)
    assert not map_loan(table, link, offer).imported.mapping.writable
    assert map_loan(table, link, offer._replace(flags=int(Flag.WRITABLE))).imported.mapping.writable
    assert len(native.opened) == 1


def test_the_owner_asks_for_what_is_unwanted_already(table, native, until):
    """This rank closed its group meanwhile: the owner hears of the end when it is unmapped, and not before."""
    link = _Link()
    loan = map_loan(table, link)
    on(loan).get()
    table.mark_unwanted(link, PeerTensorGone("it was closed"))
    table.on_unmap_request(link, 1, GONE)
    assert link.sent == []
    loan.leases.count = 0
    table.return_unused()
    until(lambda: link.sent == [(Kind.UNMAPPED, 1)])
    assert len(native.closed) == 1


def test_a_reader_may_not_write(table):
    """Neither through put() nor through the torch tensor, its views, or `out=`; its results are ordinary tensors."""
    there = on(map_loan(table, _Link()))
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
        on(map_loan(table, _Link()))

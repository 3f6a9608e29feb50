"""Handles of a peer's memory: imported where they are read, mapped with the first offer that needs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracehook._core import ipc
from tracehook.errors import PeerError
from tracehook.ipc import wire
from tracehook.ipc.handles import ReceivedHandles
from tracehook.ipc.wire import Flag, HandleKind, Kind, Offer

OFFER = Offer(5, 0, 7, 4 << 20, 0, 16, HandleKind.FILE, 7, int(Flag.WRITABLE), b"", (4,), (1,))


class _Allocations:
    """What was imported, and whether it was released."""

    made: list[_Allocations]
    most: int

    def __init__(self, device):
        self.device, self.held, self.opened = device, [], []
        self.made.append(self)

    def __len__(self):
        return len(self.held)

    def add_file(self, file):
        os.fstat(file)
        if len(self.held) == self.most:
            raise RuntimeError("cuMemImportFromShareableHandle: out of memory (2)")
        self.held.append("file")

    def map(self, kind, size, writable):
        self.opened.append((kind, size, writable, len(self.held)))
        return "mapped"

    def release(self):
        self.held.clear()


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Stand in for the native side; return all that was made."""
    found: list[_Allocations] = []
    stand_in = type("Made", (_Allocations,), {"made": found, "most": 1000})
    monkeypatch.setattr(ipc, "Allocations", stand_in)
    return found


@pytest.fixture
def here():
    """Return those of a link whose peer is known."""
    made = ReceivedHandles()
    made.accept(3)
    return made


def send(here, files, total, form=wire.FIRST, body=b"", export=5):
    """Let a message come, with so many descriptors beside it."""
    head = wire.pack_head(Kind.HANDLES, export, form, files, total)
    here.add(head + body, [os.open("/dev/null", os.O_RDONLY) for _ in range(files)])


def open_files():
    """Return how many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_handles_of_several_messages(here, made):
    """All of them are mapped at once, in their order, and released: the mapping keeps the memory."""
    before = open_files()
    send(here, 64, 70)
    send(here, 6, 70, form=0)
    assert open_files() == before, "descriptors are closed as soon as they are imported"
    assert here.map(OFFER) == "mapped"
    assert (made[0].device, made[0].opened, made[0].held) == (3, [(HandleKind.FILE, 4 << 20, True, 70)], [])
    with pytest.raises(PeerError, match="its handles did not arrive"):
        here.map(OFFER)


def test_handles_that_come_again(here, made):
    """An owner that hears that its memory could not be mapped sends them anew: the old ones are released."""
    send(here, 3, 4)
    send(here, 4, 4)
    here.map(OFFER)
    assert [one.held for one in made] == [[], []]
    assert made[1].opened[0][3] == 4


def test_descriptors_that_are_lost_on_the_way(here, made):
    """The system drops those that this process may not open: it is said, with the limit, and nothing is mapped."""
    send(here, 3, 4)
    with pytest.raises(PeerError, match=r"3 of its 4 handles arrived; .* \(ulimit -n: \d+\)"):
        here.map(OFFER)
    assert (made[0].opened, made[0].held) == ([], [])


def test_a_handle_that_cannot_be_imported(here, made):
    """The first failure is the one that is told, at the offer; what was imported is released."""
    before = open_files()
    send(here, 0, 4)
    made[0].most = 2
    send(here, 4, 4, form=0)
    with pytest.raises(PeerError, match="cuMemImportFromShareableHandle: out of memory"):
        here.map(OFFER)
    assert (made[0].held, open_files()) == ([], before)


def test_nothing_is_kept_of_strangers(made):
    """Until it is known who is at the other end, and after the end, descriptors are only closed."""
    before = open_files()
    here = ReceivedHandles()
    send(here, 2, 2)
    here.accept(0)
    send(here, 2, 2)
    here.close()
    send(here, 2, 2)
    assert ([one.held for one in made], open_files()) == ([[]], before)


def test_messages_that_make_no_sense(here):
    """A later part without a first one, a torn message and half a handle close what came; the offer is refused."""
    before = open_files()
    send(here, 1, 2, form=0)
    here.add(b"xy", [os.open("/dev/null", os.O_RDONLY)])
    with pytest.raises(PeerError, match="did not arrive"):
        here.map(OFFER)
    send(here, 0, 1, body=b"half")
    with pytest.raises(PeerError, match="0 of its 1 handles arrived"):
        here.map(OFFER)
    assert open_files() == before

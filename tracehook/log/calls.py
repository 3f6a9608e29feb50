"""What each communicator was called for: the slots of a ring's file (cpp/events/calls.h), and their lines in the log.

A slot outlives a kill. When its communicator ends, or the process does in order, the log gets a line
``communicator.calls`` with the same. The end of a slot, which older rings lack, is for :mod:`tallies`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tracehook.log.tables import COUNTED, OPERATIONS

# class CallSlot, in its order: state, comm_id, key, rank, size, adopted, aborted, collectives and how many returned,
# transfers and how many returned, digest, crowded, logged, seen, moved, born, surroundings; while it is being made its
# parent, which child it is, and how many calls came before
_HEAD = struct.Struct("<2IQ2i2I4QQ2I4QQ2I")
_PEER = struct.Struct("<3I4x")
_RECORD = struct.Struct("<QQ2IiI")
_PEERS, _COLLECTIVES, _TRANSFERS = 64, 256, 128
_FEWER = 32  # transfers that a slot remembers before schema 1.19
HEAD_BYTES: Final = _HEAD.size
_TRANSFERS_AT = _HEAD.size + _PEERS * _PEER.size + _COLLECTIVES * _RECORD.size
SLOT_BYTES: Final = _TRANSFERS_AT + _TRANSFERS * _RECORD.size  # without tallies
NARROW_BYTES: Final = _TRANSFERS_AT + _FEWER * _RECORD.size  # the same, before schema 1.19
WITH_TALLIES: Final = SLOT_BYTES + 257 * 40  # of all slots since schema 1.19; older ones are smaller
_FREE, _TAKEN, _LIVE, _BORN = 0, 1, 2, 5
_MADE, _LOGGED, _MOVED, _SURROUNDINGS = 9, 13, 15, 17  # places in _HEAD; _MADE: transfers
MAKING: Final = 1 << 25  # what no slot has: instead of a call, NCCL makes a communicator
ON_HOST: Final = 1 << 26  # nor this: the host waits for other ranks in a function of torch.distributed, without NCCL
FORGOTTEN: Final = 1 << 24  # added to a call that is too long ago to tell more of it
_FIRST_COUNTED = 128  # kFirstCounted in nccl/interpose.cpp
SEND: Final = _FIRST_COUNTED + 3
RECV: Final = _FIRST_COUNTED + 4
# Of a group of peers (ipc/counts.py): their `root` is the peer and, of signals and waits, its size * (channel + 1), and
# their digest the stream, 0 for the default one.
SIGNAL, WAIT, READ = 240, 241, 242
_OF_PEERS: Final = {SIGNAL: "signal", WAIT: "wait", READ: "read"}
_AHEAD = 2  # of `place`: kAhead in events/calls.h
_FAR_AHEAD = 4  # kFarAhead
_KEPT = 64  # calls that the line of an ended communicator has: the last ones

# ncclDataType_t, and ncclRedOp_t
TYPES: Final = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"),
    *("float8_e4m3", "float8_e5m2"),
)
BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
REDUCTIONS: Final = ("sum", "prod", "max", "min", "avg")


class Call(NamedTuple):
    """One call. `number`: of a collective, from 0, alike on all ranks; of a transfer, on this rank."""

    number: int
    what: int
    elements: int
    root: int  # or the peer, in the communicator; -1: none
    order: int  # among all calls of the process
    digest: int = 0  # of this collective and those before it
    place: int = 0  # where it runs; 0: not known, of older logs

    @property
    def group(self) -> int:
        """A number of the ncclGroupStart that it is inside; 0: none, or not known."""
        return self.place >> 8

    @property
    def is_ahead(self) -> bool:
        """Whether the device had not come to it when its program stood still."""
        return bool(self.place & _AHEAD)

    @property
    def is_far_ahead(self) -> bool:
        """The same, and where the device stood is not known."""
        return bool(self.place & _FAR_AHEAD)

    @property
    def far_ahead(self) -> Call:
        """The same call; if the device had not come to it, as one before which nobody knows where the device stood."""
        return self._replace(place=self.place & ~_AHEAD | _FAR_AHEAD) if self.is_ahead else self

    @property
    def operation(self) -> str:
        """Its name, such as ``all_reduce``."""
        return operation_name(self.what & 0xFF)

    @property
    def nbytes(self) -> int:
        """Bytes that the program named, of one rank."""
        kind = self.what >> 8 & 0xFF
        return self.elements * (BYTES[kind] if kind < len(BYTES) else 1)

    @property
    def is_semaphore(self) -> bool:
        """Whether a stream of a peer waits in it."""
        return self.what in (SIGNAL, WAIT)

    @property
    def is_of_peers(self) -> bool:
        """Whether a group of peers was called, and not NCCL."""
        return self.what in _OF_PEERS

    @property
    def is_of_nccl(self) -> bool:
        """Whether it is a call into NCCL, of which a Flight Recorder may know more."""
        return not self.is_of_peers and self.what != ON_HOST

    def described(self, root: str = "") -> str:
        """Say what was called, in words. `root`: what to call the root or peer, instead of its rank in the group."""
        if self.is_of_peers:
            told = {SIGNAL: "PeerGroup.signal to", WAIT: "PeerGroup.wait for", READ: "PeerTensor.get() from"}
            return f"{told[self.what]} {root or 'a peer'}"
        if self.what & (MAKING | FORGOTTEN):
            return "the making of a communicator" if self.what == MAKING else "a call too long ago to name it"
        kind, reduction = self.what >> 8 & 0xFF, self.what >> 16
        parts = [f"{self.operation} of {self.elements:,} {TYPES[kind] if kind < len(TYPES) else f'type {kind}'}"]
        if "reduce" in self.operation:
            parts.append(REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else "premul_sum")
        if self.root >= 0:
            name = root or f"rank {self.root} of the group"
            parts.append({"send": "to ", "recv": "from "}.get(self.operation, "root ") + name)
        return ", ".join(parts)


class Partner(NamedTuple):
    """How often this rank has sent to another rank of the communicator, and received from it."""

    rank: int
    sent: int
    received: int


class Making(NamedTuple):
    """NCCL makes a communicator, and waits for other ranks."""

    after: int  # calls that the process had made before
    child: int  # which of the parent's, from 0
    parent: str  # whose ranks all take part; empty: there is none


class Calls(NamedTuple):
    """What one communicator of one process was called for."""

    comm: str
    comm_id: int
    rank: int  # in the communicator; -1: not known
    size: int  # ranks; -1: not known
    adopted: bool  # it had made calls before it was found: its counts say nothing
    aborted: bool
    ended: bool
    collectives: int
    collectives_returned: int
    transfers: int
    transfers_returned: int
    digest: int
    is_crowded: bool  # it has transfers with more peers than are counted
    moved_ns: int  # when a count last moved, to a tenth of a second
    born_ns: int
    peers: tuple[Partner, ...]
    last: tuple[Call, ...]  # collectives, the oldest first
    last_transfers: tuple[Call, ...]
    making: Making | None = None

    @property
    def is_of_peers(self) -> bool:
        """Whether these are the calls of a group of peers: NCCL has no communicator for it."""
        return self.comm_id == 0 and self.making is None

    def peer_of(self, root: int) -> int:
        """Return the rank that a call has as its root or peer."""
        return root % self.size if self.is_of_peers and self.size > 0 else root


def operation_name(number: int) -> str:
    """Return the name of a counted operation."""
    if number in _OF_PEERS:
        return _OF_PEERS[number]
    table = OPERATIONS if number < _FIRST_COUNTED else COUNTED
    place = number % _FIRST_COUNTED
    found: Any = table[place] if place < len(table) else f"operation {number}"
    return found if isinstance(found, str) else str(found[0])


def unpack(slot: bytes, since: int = 0) -> Calls | None:
    """Return what one slot holds, of its collectives those from number `since` on; None if no communicator has it.

    Of the head of a slot alone, it has neither calls nor peers.
    """
    state, comm_id, key, rank, size, adopted, aborted, *rest = _HEAD.unpack_from(slot)
    if state in (_FREE, _TAKEN):
        return None
    collectives, returned, transfers, transfers_returned, digest, crowded, _, _, moved, born, _, *making = rest
    parent, child, after = making
    peers = (values for values in _PEER.iter_unpack(slot[_HEAD.size : _HEAD.size + _PEERS * _PEER.size]) if values[0])
    at, between = _HEAD.size + _PEERS * _PEER.size, _TRANSFERS_AT
    return Calls(
        comm=f"{key:016x}",
        comm_id=comm_id,
        rank=rank,
        size=size,
        adopted=bool(adopted),
        aborted=bool(aborted),
        ended=state not in (_LIVE, _BORN),
        collectives=collectives,
        collectives_returned=returned,
        transfers=transfers,
        transfers_returned=transfers_returned,
        digest=digest,
        is_crowded=bool(crowded),
        moved_ns=moved,
        born_ns=born,
        peers=tuple(Partner(number - 1, sent, received) for number, sent, received in peers),
        last=_calls(slot[at:between], collectives, _COLLECTIVES, since),
        last_transfers=_calls(slot[between:], transfers, _TRANSFERS),
        making=Making(after, child, f"{parent:016x}" if parent else "") if state == _BORN else None,
    )


def widened(slot: bytes) -> bytes:
    """Return a slot from before schema 1.19, which has room for fewer transfers, as one of today."""
    made, records = int(_HEAD.unpack_from(slot)[_MADE]), bytearray(_TRANSFERS * _RECORD.size)
    for number in range(max(made - _FEWER, 0), made):
        old, new = _TRANSFERS_AT + number % _FEWER * _RECORD.size, number % _TRANSFERS * _RECORD.size
        records[new : new + _RECORD.size] = slot[old : old + _RECORD.size]
    return slot[:_TRANSFERS_AT] + bytes(records) + slot[NARROW_BYTES:]


def key_of(slot: bytes) -> str:
    """Return the key of the communicator that has a slot."""
    return f"{_HEAD.unpack_from(slot)[2]:016x}"


def moved_of(head: bytes) -> int | None:
    """Return when the communicator that has a slot made its last call, or began to be made; None if it did neither.

    `head`: the first bytes of the slot.
    """
    if len(head) < HEAD_BYTES:
        return None
    values = _HEAD.unpack_from(head)
    return int(values[_MOVED]) if values[0] == _BORN or (values[0] == _LIVE and (values[7] or values[9])) else None


def _calls(data: bytes, made: int, kept: int, since: int = 0) -> tuple[Call, ...]:
    found: list[Call] = []
    for number in range(max(since, made - kept, 0), made) if data else ():
        elements, digest, order, what, root, place = _RECORD.unpack_from(data, number % kept * _RECORD.size)
        if order:  # else it was not remembered
            found.append(Call(number, what, elements, root, order, digest, place))
    return tuple(found)


def surroundings_in(slot: bytes) -> int:
    """Return what NCCL's path depends on besides the calls, packed: see :mod:`tallies`."""
    return int(_HEAD.unpack_from(slot)[_SURROUNDINGS])


def unlogged(slots: Iterable[bytes]) -> Iterator[tuple[Calls, bytes]]:
    """Yield what the slots of a ring's file hold, each with its slot, without those that have a line in the log."""
    for slot in slots:
        found = unpack(slot)
        if found is not None and not _HEAD.unpack_from(slot)[_LOGGED]:
            yield found, slot


def fields_of(calls: Calls) -> dict[str, Any]:
    """Return the fields of ``communicator.calls``. Calls and peers are texts: lists of numbers, by commas."""
    return {
        "comm": calls.comm,
        "comm_id": calls.comm_id,
        **({"comm_rank": calls.rank} if calls.rank >= 0 else {}),
        **({"ranks": calls.size} if calls.size > 0 else {}),
        **({"adopted": True} if calls.adopted else {}),
        "aborted": calls.aborted,
        "calls": calls.collectives,
        "calls_returned": calls.collectives_returned,
        "transfers": calls.transfers,
        "transfers_returned": calls.transfers_returned,
        "moved_ns": calls.moved_ns,
        "born_ns": calls.born_ns,
        "peers": _packed(calls.peers) + (" more" if calls.is_crowded else ""),
        # One that lived to the end may hang, and others may have run far ahead.
        "last": _packed(calls.last[-_KEPT:] if calls.ended else calls.last),
        "last_transfers": _packed(calls.last_transfers[-_KEPT:] if calls.ended else calls.last_transfers),
        **({"making": ",".join(map(str, calls.making))} if calls.making else {}),
    }


def parse(event: Mapping[str, Any]) -> Calls | None:
    """Return what a line ``communicator.calls`` tells; None if it is damaged."""
    try:
        peers, crowded, _ = str(event["peers"]).partition(" more")
        last = _unpacked_calls(event["last"])
        return Calls(
            comm=str(event["comm"]),
            comm_id=int(event["comm_id"]),
            rank=number_or_none(event.get("comm_rank")),
            size=number_or_none(event.get("ranks")),
            adopted=bool(event.get("adopted")),
            aborted=bool(event["aborted"]),
            ended=True,
            collectives=int(event["calls"]),
            collectives_returned=int(event["calls_returned"]),
            transfers=int(event["transfers"]),
            transfers_returned=int(event["transfers_returned"]),
            digest=last[-1].digest if last else 0,
            is_crowded=bool(crowded),
            moved_ns=int(event["moved_ns"]),
            born_ns=int(event["born_ns"]),
            peers=tuple(Partner(*numbers) for numbers in _unpacked(peers)),
            last=last,
            last_transfers=_unpacked_calls(event["last_transfers"]),
            making=_making(event.get("making")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _unpacked_calls(text: str) -> tuple[Call, ...]:
    return tuple(Call(*numbers) for numbers in _unpacked(text))


def _making(text: object) -> Making | None:
    if not isinstance(text, str):
        return None
    after, child, parent = text.split(",")
    return Making(int(after), int(child), parent)


def number_or_none(value: object) -> int:
    """Return the number that a line tells; -1 if it tells none."""
    return value if isinstance(value, int) else -1


def _packed(rows: Iterable[tuple[int, ...]]) -> str:
    return " ".join(",".join(map(str, row)) for row in rows)


def _unpacked(text: str) -> Iterator[tuple[int, ...]]:
    return (tuple(map(int, row.split(","))) for row in text.split())

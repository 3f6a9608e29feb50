"""What goes over a link: records of a fixed layout. No object and no address, only offsets, handles and numbers.

A message is one packet: a head, and after it, by its kind, offers, handles or text. Handles of memory that is mapped
allocation by allocation go before its first offer to a peer; those that are file descriptors travel beside the message.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

from tracehook.log.tables import HANDLES

MAJOR, MINOR = 3, 0
MAGIC = b"THPL"
MOST_DIMENSIONS = 8
OFFERS_OF_A_MESSAGE = 64  # a packet is at most some 200 KB
HANDLES_OF_A_MESSAGE = 64  # and carries at most 253 descriptors
HANDLE_BYTES = 64
FIRST = 1  # the form of the first message with handles of an export
MOST_BYTES = 65536

# magic, major, minor, key of the group, life of the process, rank, device, the other's secret
_HELLO = struct.Struct("<4sHHQQii16s")
_HEAD = struct.Struct("<BBHIQQ")  # kind, form, parts, total, number, ranks
# export, segment, loan, bytes to map, offset, bytes from there; handle, pool?, dtype, dimensions, flags; the handle
_OFFER = struct.Struct("<6Q4BI64s8q8q")
HEAD_BYTES = _HEAD.size

# The order is part of the format: append, never insert. A torch that lacks one refuses it by name.
DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "uint16", "uint32", "uint64", "complex32"),
)


class Kind(IntEnum):
    """What a message says; `number` of its head is given in parentheses."""

    EXCHANGE = 1  # these are my tensors (of this exchange on this link)
    REFUSED = 2  # I raise in this exchange (its number): who gave up, and why
    RECALL = 3  # I want this tensor's memory back (loan)
    RETURNED = 4  # I do not use it any more (loan)
    UNMAP = 5  # unmap this segment (export)
    UNMAPPED = 6  # I have unmapped it (export)
    NOT_MAPPED = 7  # I could not map it: send its handle again (export)
    BYE = 8  # I exchange no more on this link, and want back all that is mine
    SEMAPHORES = 9  # these are my semaphores
    HANDLES = 10  # these are the handles of this segment's allocations, or the next of them (export)
    CONFIRMED = 11  # I have mapped your part of this exchange, or the parts of all (its number; the form: a Reached)


class Form(IntEnum):
    """How the tensors of an exchange were given."""

    NOTHING = 0
    ONE = 1
    LIST = 2


class Reached(IntEnum):
    """How far a rank is in an exchange."""

    GIVEN = 0  # its part has come
    PAIR = 1  # it has the part of the rank that it tells
    ALL = 2  # it has the parts of all


class HandleKind(IntEnum):
    """How memory goes to a peer; see cpp/events/handle_kinds.def."""

    NONE = HANDLES.index("none")
    RUNTIME = HANDLES.index("runtime")  # the handle is in each offer
    FILE = HANDLES.index("file")
    FABRIC = HANDLES.index("fabric")


class Flag(IntFlag):
    """What else holds for an offer."""

    WRITABLE = 1
    POOL = 4  # `segment` counts the segments of the pools, not those of the allocator


class WireError(ValueError):
    """A message that this side does not understand."""


class Hello(NamedTuple):
    """The first message of either side."""

    group: int
    life: int
    rank: int
    device: int
    secret: bytes


class Head(NamedTuple):
    """How each later message begins."""

    kind: int
    form: int
    parts: int  # offers or handles in this message
    total: int
    number: int
    ranks: int  # of an exchange: all_of() the ranks of the sender's call, itself among them


class Offer(NamedTuple):
    """One tensor. `export` numbers what its owner shares, segment by segment, and never again for another.

    `segment` is 0 for memory of no segment that tracehook follows: the allocations of the driver under this tensor.
    """

    export: int
    segment: int
    loan: int
    size: int
    offset: int
    nbytes: int
    handle_kind: int
    dtype: int
    flags: int
    handle: bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def pack_hello(hello: Hello) -> bytes:
    """Return the first message."""
    return _HELLO.pack(MAGIC, MAJOR, MINOR, *hello)


def unpack_hello(data: bytes) -> Hello:
    """Read the first message. Raises :class:`WireError` with one line if it is none, or of another major version."""
    if len(data) < 8 or data[:4] != MAGIC:
        raise WireError("it does not speak tracehook's protocol")
    major, minor = struct.unpack_from("<HH", data, 4)
    if major != MAJOR:
        raise WireError(f"it speaks version {major}.{minor} of the protocol, this rank {MAJOR}.{MINOR}")
    if len(data) < _HELLO.size:
        raise WireError(f"its first message was cut after {len(data)} bytes")
    return Hello(*_HELLO.unpack_from(data)[3:])


def pack_head(kind: int, number: int = 0, form: int = 0, count: int = 0, total: int = 0, ranks: int = 0) -> bytes:
    """Return a head, which is a whole message for most kinds."""
    return _HEAD.pack(kind, form, count, total, number, ranks)


def unpack_head(data: bytes) -> Head:
    """Read the head of a message."""
    if len(data) < HEAD_BYTES:
        raise WireError(f"a message of {len(data)} bytes")
    return Head(*_HEAD.unpack_from(data))


def unpack_handles(data: bytes) -> list[bytes]:
    """Return the handles of a message of kind HANDLES that came within it, not beside it."""
    if (len(data) - HEAD_BYTES) % HANDLE_BYTES:
        raise WireError(f"a message of {len(data)} bytes with handles")
    return [data[begin : begin + HANDLE_BYTES] for begin in range(HEAD_BYTES, len(data), HANDLE_BYTES)]


def pack_offer(offer: Offer) -> bytes:
    """Return the record of one tensor."""
    *numbers, flags, handle, shape, strides = offer
    dimensions = len(shape)
    if dimensions > MOST_DIMENSIONS:
        raise WireError(f"a tensor of {dimensions} dimensions; at most {MOST_DIMENSIONS} can be shared")
    padding = (0,) * (MOST_DIMENSIONS - dimensions)
    return _OFFER.pack(*numbers, dimensions, 0, flags, handle, *shape, *padding, *strides, *padding)


def unpack_offers(data: bytes, count: int) -> Iterator[Offer]:
    """Yield the offers behind the head of a message."""
    if len(data) != HEAD_BYTES + count * _OFFER.size:
        raise WireError(f"a message of {len(data)} bytes for {count} tensors")
    for values in _OFFER.iter_unpack(memoryview(data)[HEAD_BYTES:]):
        export, segment, loan, size, offset, nbytes, handle_kind, dtype, dimensions, _, flags, handle, *rest = values
        if dimensions > MOST_DIMENSIONS or dtype >= len(DTYPES) or offset + nbytes > size:
            raise WireError(f"a tensor of {dimensions} dimensions, type {dtype}, {nbytes} bytes at {offset} of {size}")
        shape, strides = rest[:dimensions], rest[MOST_DIMENSIONS : MOST_DIMENSIONS + dimensions]
        yield Offer(
            export, segment, loan, size, offset, nbytes, handle_kind, dtype, flags, handle, tuple(shape), tuple(strides)
        )


def all_of(ranks: Iterable[int]) -> int:
    """Return a number that stands for these ranks: two sets of ranks have the same one only by chance."""
    text = ",".join(map(str, sorted(ranks)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def exchange_messages(number: int, form: int, offers: Sequence[Offer], ranks: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the messages of one exchange, each with the number of offers in it."""
    total = len(offers)
    for begin in range(0, max(total, 1), OFFERS_OF_A_MESSAGE):
        part = offers[begin : begin + OFFERS_OF_A_MESSAGE]
        head = pack_head(Kind.EXCHANGE, number, form, len(part), total, ranks)
        yield head + b"".join(map(pack_offer, part)), len(part)

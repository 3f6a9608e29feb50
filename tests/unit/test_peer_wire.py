"""Records on a link: fixed layout, versions, and what is refused."""

import struct

import pytest

from tracehook.ipc import wire
from tracehook.ipc.wire import Form, Hello, Kind, Offer, WireError

HELLO = Hello(group=2**64 - 1, life=5, rank=3, device=1, secret=bytes(range(16)))
OFFER = Offer(1, 2**40, 3, 1 << 30, 4096, 24, 2, 7, int(wire.Flag.WRITABLE), b"h" * 64, (2, 3), (3, 1))


def test_a_hello_comes_back_as_it_was():
    """Both sides read what the other wrote; only the major version says that the layout has changed."""
    assert wire.unpack_hello(wire.pack_hello(HELLO)) == HELLO
    data = bytearray(wire.pack_hello(HELLO))
    data[6:8] = struct.pack("<H", 9)
    assert wire.unpack_hello(bytes(data)) == HELLO


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1", "does not speak"),
        (b"", "does not speak"),
        (wire.MAGIC + struct.pack("<HH", 1, 7), r"version 1\.7 of the protocol, this rank 3\.0"),
        (wire.pack_hello(HELLO)[:20], "cut after 20 bytes"),
    ],
)
def test_a_foreign_hello_is_refused(data, said):
    """Another program, another major version and a torn message get one line each."""
    with pytest.raises(WireError, match=said):
        wire.unpack_hello(data)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
def test_an_exchange_is_cut_into_messages(count):
    """Any number of tensors goes in messages of bounded size, each with what tells that it is not the last."""
    offers = [OFFER._replace(loan=number) for number in range(count)]
    found: list[Offer] = []
    for data, here in wire.exchange_messages(9, Form.LIST, offers):
        head = wire.unpack_head(data)
        assert (head.kind, head.form, head.number, head.total) == (Kind.EXCHANGE, Form.LIST, 9, count)
        assert len(data) <= wire.MOST_BYTES
        assert head.parts == here
        found += wire.unpack_offers(data, here)
    assert found == offers


def test_handles_in_a_message():
    """Those that are no descriptors stand behind the head; a message with half of one is refused."""
    handles = [bytes([number]) * wire.HANDLE_BYTES for number in range(wire.HANDLES_OF_A_MESSAGE)]
    data = wire.pack_head(Kind.HANDLES, 5) + b"".join(handles)
    assert wire.unpack_handles(data) == handles
    assert wire.unpack_handles(data[: wire.HEAD_BYTES]) == []
    with pytest.raises(WireError, match="with handles"):
        wire.unpack_handles(data[:-1])


@pytest.mark.parametrize("shape", [(), (0,), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_shapes_of_up_to_eight_dimensions(shape):
    """A scalar, a tensor without elements and one of eight dimensions keep their shape and strides."""
    offer = OFFER._replace(shape=shape, strides=tuple(range(len(shape))))
    data = wire.pack_head(Kind.EXCHANGE, 1) + wire.pack_offer(offer)
    assert list(wire.unpack_offers(data, 1)) == [offer]


def test_what_the_layout_cannot_hold_is_refused():
    """It has room for eight dimensions; a message of another length than its head says is not read."""
    with pytest.raises(WireError, match="9 dimensions; at most 8"):
        wire.pack_offer(OFFER._replace(shape=(1,) * 9, strides=(1,) * 9))
    data = wire.pack_head(Kind.EXCHANGE, 1) + wire.pack_offer(OFFER)
    with pytest.raises(WireError, match="for 1 tensors"):
        list(wire.unpack_offers(data[:-1], 1))
    with pytest.raises(WireError, match="a message of 3 bytes"):
        wire.unpack_head(b"abc")


@pytest.mark.parametrize("changes", [{"offset": (1 << 30) - 8}, {"dtype": 250}])
def test_an_offer_outside_of_its_segment_is_refused(changes):
    """What would make a tensor past the end of a mapping, or of no type, is not believed."""
    data = wire.pack_head(Kind.EXCHANGE, 1) + wire.pack_offer(OFFER._replace(**changes))
    with pytest.raises(WireError):
        list(wire.unpack_offers(data, 1))


def test_numbers_of_types_never_change():
    """The order of the table is part of the format: append, never insert."""
    assert wire.DTYPES[:10] == (
        "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
    )  # fmt: skip
    assert [kind.value for kind in Kind] == list(range(1, 12))

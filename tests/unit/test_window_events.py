"""The events of pools, windows and agreements: from the native side into the ring, and as the log shows them."""

import pytest

from tracehook.log.records import OF_POOL, fields_of, unpack

KIB = 1024
X = 1
COMM = {"comm": 0xABC, "comm_id": 1, "comm_seq": 7, "comm_rank": 3, "device": 0}
COMMON = {"event", "seq", "t_ns", "device", "comm", "comm_id", "comm_seq", "comm_rank"}


@pytest.fixture
def member(harness):
    """Return a communicator of a harness whose bank is open."""
    harness.open_bank()
    harness.create(X)
    return harness.find_communicator(X)


@pytest.fixture
def told(events):
    """Return the fields of each event of a name that are its own."""
    return lambda name: [{key: value for key, value in row.items() if key not in COMMON} for row in events(name)]


def _register(harness, member, **given):
    address = harness.take(5, 0, 4 * KIB, **given)
    segment = harness.pool_segments()[-1].id
    outcomes = member.register_windows([segment])
    member.confirm_windows()
    return segment, address, outcomes


def test_a_window_is_logged(harness, member, told):
    """A registration has the pool's segment, where it is, how long it took and whether it had an effect."""
    segment, address, _ = _register(harness, member)
    (made,) = told("register.window")
    assert made.pop("us") >= 0
    assert made.pop("thread") > 0
    expected = {"pool_segment": segment, "addr": f"{address:#x}", "size": 4 * KIB, "ok": True}
    assert made == expected | {"pool": 5, "effective": True, "ordinal": 0}
    member.deregister_windows([segment])
    (undone,) = told("deregister.window")
    assert {key: undone[key] for key in expected} == expected


def test_a_refused_window_is_logged(harness, member, told):
    """A window that NCCL refused has its error, and no word on an effect."""
    harness.fail_after(X, 0)
    _register(harness, member)
    (row,) = told("register.window")
    assert (row["ok"], row["error"], "effective" in row) == (False, 1, False)


def test_an_agreement_is_logged(member, told):
    """How an agreement went has its entries, its duration, and the rank that did not come."""
    for event in ("agreement.reached", "agreement.mismatch", "agreement.failed"):
        member.log(event, entries=3, duration_ns=2500)
        assert told(event) == [{"entries": 3, "us": 2.5}]
    for rank in (6, 0):
        member.log("agreement.timeout", entries=1, missing_rank=rank)
    assert told("agreement.timeout") == [{"entries": 1, "missing_rank": rank} for rank in (6, 0)]
    member.log("placement.mismatch")
    assert told("placement.mismatch") == [{}]


def test_a_first_use_is_logged(harness, member, told):
    """A new placement has the operation and, for each side, the window and the offset, also those not compared."""
    _, first, _ = _register(harness, member)
    _, second, _ = _register(harness, member)
    for _ in range(2):
        harness.look(member, 2, (second + 48, first), (16, 16), ("where", "whether"))
    harness.look(member, 0, (first, 0x10), (4 * KIB + 1, 16))
    assert told("placement.first_use") == [
        {"operation": "reduce_scatter", "send_window": 1, "send_offset": 48, "receive_window": 0, "receive_offset": 0},
        {
            "operation": "all_reduce",
            "send_window": "overrun",
            "send_offset": 0,
            "receive_window": None,
            "receive_offset": None,
        },
    ]


def test_the_last_digest_is_logged(harness, member, told):
    """At its end a communicator that was used leaves how often, and the digest; one that was not leaves nothing."""
    _, address, _ = _register(harness, member)
    harness.create(2)
    harness.look(member, 0, (address, address), (16, 16))
    harness.look(member, 0, (address, address), (16, 16))
    uses, digest = member.digest()
    harness.retire(X)
    harness.retire(2)
    assert told("placement.digest") == [{"uses": 2, "digest": f"{digest:016x}"}]
    assert uses == 2


PLACES = dict.fromkeys(("send_window", "send_offset", "receive_window", "receive_offset"))


@pytest.mark.parametrize(
    ("event", "given", "expected"),
    [
        (
            "placement.first_use",
            {"receive_window": 1, "receive_offset": 7},
            PLACES | {"receive_window": 0, "receive_offset": 7},
        ),
        ("placement.first_use", {"send_window": 3, "send_offset": 9}, PLACES | {"send_window": 2, "send_offset": 9}),
        (
            "placement.first_use",
            {"receive_window": 0xFFFFFFFF, "receive_offset": 1},
            PLACES | {"receive_window": "overrun", "receive_offset": 1},
        ),
        ("placement.first_use", {"operation": 5}, {"operation": "scatter"}),
        ("placement.first_use", {"operation": 99}, {"operation": "99"}),
        ("register.stalled", {"pool_segment": 4, "duration_ns": 60_000}, {"pool_segment": 4, "us": 60.0}),
        ("register.window", {"effective": 1, "pool": 2}, {"ok": True, "pool": 2, "effective": False}),
        ("deregister.window", {"result": 5}, {"ok": False, "error": 5}),
        (
            "policy.expected",
            {"operation": 1, "bucket": 1 << 17, "plain_ns": 21_500, "symmetric_ns": 13_250},
            {"operation": "all_gather", "bucket": 1 << 17, "plain_us": 21.5, "symmetric_us": 13.25},
        ),
        ("policy.chosen", {"choice": -1, "answer": 2}, {"choice": -1, "answer": "none"}),
        ("ipc.export", {"segment": OF_POOL | 4}, {"pool_segment": 4}),
        ("ipc.open", {"peer_segment": OF_POOL | 4}, {"peer_pool_segment": 4}),
        ("ipc.close", {"peer_segment": 4}, {"peer_segment": 4}),
        ("communicator.failed", {"result": 1, "registrations": 4}, {"ok": False, "error": 1, "registrations": 4}),
        ("ledger.check", {"differences": 1, "segments": 6}, {"differences": 1, "segments": 6, "ok": False}),
        ("ledger.difference", {"only_in": 0}, {"only_in": "allocator"}),
    ],
)
def test_other_fields_are_read(core, event, given, expected):
    """What an event has of its own stands under its own names."""
    core.push(event, **(COMM | given))
    (record,) = unpack(core.data)
    name, fields = fields_of(record)
    assert name == event
    assert {key: fields[key] for key in expected} == expected
    assert "segment" not in fields
    assert not event.startswith("placement.") or not {"addr", "size"} & fields.keys()

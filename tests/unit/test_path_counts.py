"""From what the gate counted to paths: every key with the versions of the table, and the lines of the log."""

import itertools
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import tracehook
from tracehook.log import calls, ring, tallies
from tracehook.log.records import RECORD_BYTES
from tracehook.log.ring import read_slots
from tracehook.log.tallies import DOMAINS, SETTINGS, Surroundings, Tallies, Tally, tally_of
from tracehook.nccl import paths
from tracehook.nccl.counts import PathCount, counted, path_of_tally
from tracehook.nccl.rules import OPERATIONS

VERSIONS = (22707, 22809, 22907, 23007)
KB, MB = 1 << 10, 1 << 20
S, P, C, U = "symmetric", "plain", "copy_engine", "unknown"
SLOT = 128 + 64 * 16 + (256 + 128) * 32  # of a tracehook that counted no paths


def tally(operation: str = "all_reduce", windows: str = "both", nbytes: int = MB, **more: Any) -> Tally:
    """Return ten calls of one kind."""
    given = {"dtype": "float32", "reduction": "sum", "group": "alone", "captured": False, **more}
    bucket = 1 << nbytes.bit_length() >> 1
    row = {"bucket": bucket, "count": 10, "nbytes": 10 * nbytes, "least": nbytes, "most": nbytes, **given}
    return Tally(operation=operation, windows=windows, **row)


def told(*rows: Tally, domain: str = "one_host", policy: int = 0, capability: int = 90, **settings: str) -> Tallies:
    """Return a communicator of eight ranks that counted these."""
    return Tallies("00000000000000ab", 3, 1, 8, Surroundings(domain, policy, capability), settings, rows)


def named(*arguments: Any, **more: Any) -> tuple[str, ...]:
    """Return the path with each version."""
    around = {name: more.pop(name) for name in ("domain", "policy", "capability", *SETTINGS) if name in more}
    row = tally(*arguments, **more)
    return tuple(path_of_tally(row, told(row, **around), version) for version in VERSIONS)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("nbytes", [1, 3 * KB, 64 * MB])
@pytest.mark.parametrize("windows", ["none", "send", "receive", "both"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"send", "recv"}))
def test_each_key_has_the_path_of_the_table(operation, windows, nbytes, captured):
    """What explain says of such a call is what its count is called; where only NCCL knows, unknown."""
    for version, domain, reduction in itertools.product(VERSIONS, DOMAINS, ("sum", "avg", "max", "premul_sum")):
        row = tally(operation, windows, nbytes, captured=captured, reduction=reduction)
        answer = paths.path_of(
            operation,
            reduction=reduction,
            sends_in_window=windows in ("send", "both"),
            receives_in_window=windows in ("receive", "both"),
            nbytes=nbytes,
            ranks=8,
            version=version,
            domain=domain or None,
            capability=90,
            itemsize=4,
        )
        wanted = {"symmetric": S, "plain": P, "copy_engine": C, "depends": U}[answer.kind]
        assert path_of_tally(row, told(row, domain=domain), version) == wanted, answer


def test_a_group_counts_as_the_version_does():
    """Before 2.28.3 anything else in the group makes a call plain; from then on calls alike keep it from LL kernels."""
    assert named(group="alone") == (S, S, S, S)
    assert named(group="grouped") == named(group="alike") == (P, S, S, S)
    assert named("all_reduce", "send", KB, group="grouped") == (P, P, U, U)
    assert named("all_reduce", "send", KB, group="alike") == (P, P, P, P)


def test_the_copy_engine():
    """By the policy, by the setting, or for a large all_gather on Blackwell: the least and the most decide."""
    assert named("all_to_all") == (P, P, P, P)
    assert named("all_to_all", policy=2) == named("all_to_all", NCCL_CTA_POLICY="ZERO") == (P, C, C, C)
    assert named("all_gather", nbytes=33 * MB, capability=100) == (S, S, C, C)
    assert named("all_gather", nbytes=33 * MB, capability=0) == (S, S, U, U)
    call: dict[str, Any] = {"operation": "all_gather", "capability": 100}
    assert named(**call, nbytes=32 * MB) == (S, S, S, S)
    assert named(**call, nbytes=48 * MB, least=32 * MB) == (S, S, U, U)
    assert named(**call, nbytes=48 * MB, least=40 * MB) == (S, S, C, C)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16"])
def test_types_by_the_names_of_nccl(dtype):
    """The table has torch's."""
    assert named(dtype=dtype) == (S, S, S, S)


def test_what_is_not_known():
    """No version, no domain, a kind that found no room, an operation of a later tracehook."""
    row = tally()
    assert path_of_tally(row, told(row), 0) == U
    assert named(domain="") == (U, U, U, U)
    assert named("none of ours") == (U, U, U, U)
    assert path_of_tally(tally_of((1 << 64) - 1, 5, 50, 1, 20), told(), 22809) == U


def test_counts_of_one_path_are_added():
    """Types and groups are no columns; sizes, captures and communicators are."""
    rows = [tally(), tally(dtype="bfloat16"), tally(captured=True), tally(windows="none"), tally(nbytes=2 * MB)]
    assert counted([told(*rows)], 22809) == [
        PathCount("00000000000000ab", 3, 1, "all_reduce", MB, P, False, 10, 10 * MB),
        PathCount("00000000000000ab", 3, 1, "all_reduce", MB, S, False, 20, 20 * MB),
        PathCount("00000000000000ab", 3, 1, "all_reduce", MB, S, True, 10, 10 * MB),
        PathCount("00000000000000ab", 3, 1, "all_reduce", 2 * MB, S, False, 10, 20 * MB),
    ]


def packed(**given: int) -> int:
    """Return a kind as tally.h packs it: an average of bfloat16 by all_gather_config, unless `given` says otherwise."""
    values = {"operation": 7, "type": 9, "reduction": 4, "bucket": 11, "flags": 0, **given}
    kind = values["operation"] | values["type"] << 8 | values["reduction"] << 16 | values["bucket"] << 24
    return kind | values["flags"] << 32 | 1 << 63


def slot(*entries: tuple[int, ...], around: int = 0) -> bytes:
    """Return a slot of a communicator that lives, with these tallies."""
    head = struct.pack("<2IQ2i2I4QQ2I4Q16x", 2, 3, 0xAB, 1, 8, 0, 0, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, around)
    return head.ljust(SLOT, b"\0") + b"".join(struct.pack("<5Q", *entry) for entry in entries)


def test_a_kind_is_read_as_it_was_packed():
    """Names without _config and _in_place; flags in the order of tally.h."""
    common: dict[str, Any] = {"operation": "all_gather", "dtype": "bfloat16", "reduction": "avg"}
    common |= {"bucket": 1024, "count": 2, "nbytes": 3000, "least": 1400, "most": 1600}
    for flags, windows, group, captured in (
        (0, "none", "alone", False),
        (1, "send", "alone", False),
        (2, "receive", "alone", False),
        (3 | 4, "both", "alone", True),
        (3 | 8, "both", "grouped", False),
        (8 | 16, "none", "alike", False),
    ):
        wanted = Tally(**common, windows=windows, group=group, captured=captured)
        assert tally_of(packed(flags=flags), 2, 3000, 1400, 1600) == wanted
    assert tally_of(packed(bucket=0), 1, 0, 0, 0).bucket == 0
    assert tally_of(packed(bucket=1), 1, 1, 1, 1).bucket == 1
    assert tally_of(packed(operation=129, reduction=5), 1, 1, 1, 1)[:3] == ("broadcast", "bfloat16", "premul_sum")


def test_a_line_tells_what_the_slot_held():
    """Of the environment only what NCCL's path depends on, and no value that would break the line."""
    around = Surroundings("one_host", 2, 90)
    data = slot((packed(flags=7), 2, 3000, 1400, 1600), (packed(), 1, 1024, 1024, 1024), around=around.packed())
    found = tallies.unpack(data, {"HOME": "/", "NCCL_CTA_POLICY": "2", "NCCL_SYM_KERNEL": "a b"})
    assert found is not None
    assert (found.comm, found.comm_id, found.rank, found.size) == ("00000000000000ab", 3, 1, 8)
    assert found.surroundings == around
    line = tallies.fields_of(found)
    assert line["surroundings"] == "domain=one_host policy=2 capability=90 NCCL_CTA_POLICY=2"
    assert tallies.parse(line) == found._replace(settings={"NCCL_CTA_POLICY": "2"})


@pytest.mark.parametrize("damage", [{"tallies": "all_reduce,float32"}, {"surroundings": "x"}, {"comm_id": "three"}])
def test_a_damaged_line_is_left_out(damage):
    """It is None, and no exception."""
    row = tally()
    assert tallies.parse(tallies.fields_of(told(row)) | damage) is None


def test_an_older_slot_has_no_tallies():
    """And a communicator that made no collective has none either."""
    assert tallies.unpack(slot(), {}) is None
    assert tallies.unpack(slot((0, 0, 0, 0, 0)), {}) is None
    assert calls.unpack(slot()) is not None


def narrow(transfers: int) -> bytes:
    """Return a slot from before schema 1.19: it remembers the last 32 of these transfers."""
    whole = bytearray(slot()[: SLOT - 96 * 32])
    struct.pack_into("<Q", whole, 48, transfers)
    for number in range(max(0, transfers - 32), transfers):
        at = len(whole) - 32 * 32 + number % 32 * 32
        struct.pack_into("<QQ2IiI", whole, at, 7, 0, number + 1, calls.SEND, 1, 0)
    return bytes(whole)


@pytest.mark.parametrize("made", [0, 5, 32, 33, 127, 128, 1000])
def test_the_transfers_of_an_older_ring_are_those_that_it_remembers(made):
    """Today's slot remembers more; what the older one forgot is not there."""
    found = calls.unpack(calls.widened(narrow(made)))
    assert found is not None
    assert [call.number for call in found.last_transfers] == list(range(max(0, made - 32), made))
    assert [call.order for call in found.last_transfers] == [call.number + 1 for call in found.last_transfers]


@pytest.mark.parametrize(
    ("is_narrow", "more"),
    [(True, ()), (True, ((packed(), 1, 1024, 1024, 1024),)), (False, ((packed(), 1, 1024, 1024, 1024),))],
)
def test_rings_with_and_without_tallies_are_read(tmp_path, more, is_narrow):
    """The header says how long a slot is: in rings of older versions it ends before the tallies, or has less room."""
    tallied = slot(*more)[SLOT:].ljust(257 * 40, b"\0") if more else b""
    slots = ((narrow(3) if is_narrow else slot()) + tallied) * 2
    start = 4096
    header = struct.pack("<8sIIQQQQQQQ", ring.MAGIC, start + len(slots), RECORD_BYTES, 1, 0, 0, 0, 0, 4711, 0)
    header += struct.pack("<IiQII", 0, 0, 0, 2, len(slots) // 2)
    path = tmp_path / "a.ring"
    path.write_bytes(header.ljust(start, b"\0") + slots + bytes(RECORD_BYTES))
    found = list(calls.unlogged(ring.read_file(path).slots))
    assert [one.collectives for one, _ in found] == [9, 9]
    assert [tallies.unpack(data, {}) is not None for _, data in found] == [bool(more)] * 2
    assert [len(head) for head in read_slots(path, calls.HEAD_BYTES)] == [calls.HEAD_BYTES] * 2


def test_the_settings_in_the_log_are_those_that_the_table_asks_for():
    """And the domains that a slot can name are those of the table."""
    source = Path(paths.__file__).read_text(encoding="utf-8")
    assert set(SETTINGS) == set(re.findall(r'"(NCCL_[A-Z_]+)"', source))
    assert set(DOMAINS) - {""} == paths.DOMAINS
    for domain in DOMAINS:
        assert Surroundings.unpacked(Surroundings(domain, 3, 100).packed()) == (domain, 3, 100)
    assert Surroundings.unpacked(0) == ("", 0, 0)


def test_a_process_without_tracehook_has_no_counts(monkeypatch):
    """An empty list, so that who exports the counts need not ask first."""
    from tracehook.nccl import counts

    def not_started() -> None:
        raise RuntimeError("tracehook is not started in this process")

    monkeypatch.setattr(tracehook._core, "tallied", not_started)
    assert counts.path_counts() == []

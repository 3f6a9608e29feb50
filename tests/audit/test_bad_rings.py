"""Rings that are damaged, or all that a killed process left."""

import json
from pathlib import Path

import pytest
from support.audits import FINDINGS, Audit, change, log_of, ring_of

from tracehook.log import ring

RINGS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "no ring": (b"text" * 100, ("damaged-file", "not a tracehook ring")),
    "cut": (ring_of(3)[:5000], ("damaged-file", "cut after 5000 bytes, expected ")),
    "cut header": (ring_of(3)[:20], ("damaged-file", "not a tracehook ring")),
    "other records": (
        ring_of().replace(b"\x60\0\0\0", b"\x61\0\0\0", 1),
        ("damaged-file", "records have 97 bytes, this tracehook reads 96"),
    ),
    "no room": (ring_of(capacity=0), ("damaged-file", "damaged header")),
    "beyond": (ring._HEADER.pack(ring.MAGIC, 4096, 96, 1 << 60, 5, 1, 0, 0, 7, 0), ("damaged-file", "cut")),
    "backwards": (ring._HEADER.pack(ring.MAGIC, 4096, 96, 16, 1, 5, 0, 0, 7, 0), ("damaged-file", "damaged header")),
    "header anywhere": (ring._HEADER.pack(ring.MAGIC, 1 << 31, 96, 16, 1, 0, 0, 0, 7, 0), ("damaged-file", "cut")),
    "of another process": (ring_of(3, first=5000), ("lost-events",)),
    "zeros for events": (ring_of(0, 0).replace(b"\0" * 8, b"\x03" + b"\0" * 7, 1), ()),
}


@pytest.mark.parametrize("kind", RINGS)
def test_ring_that_does_not_fit(logs: Path, kind: str) -> None:
    """A ring that is damaged, or holds what cannot be, is named; the log beside it is read."""
    content, words = RINGS[kind]
    log = log_of(logs)
    change(log, lambda lines: lines[:-1])
    log.with_suffix(".ring").write_bytes(content)
    Audit(logs, "--max-findings", "0").expect(FINDINGS, "no-end", "2 ranks", *words)


def test_ring_that_would_take_much_memory(logs: Path) -> None:
    """A file of 4 KiB may have a hole of gigabytes behind it; a ring has no more events than tracehook makes."""
    log = log_of(logs)
    change(log, lambda lines: lines[:-1])
    count = ring.MOST_EVENTS + 1
    with log.with_suffix(".ring").open("wb") as file:
        file.write(ring._HEADER.pack(ring.MAGIC, 4096, 96, count, count, 0, 0, 0, 7, 0))
        file.truncate(4096 + count * 96)
    Audit(logs, "--max-findings", "0").expect(FINDINGS, "damaged-file", f"room for {count} events")


def test_ring_without_a_log(logs: Path) -> None:
    """A process that was killed before it had a log is named by its ring, and what that holds is read."""
    log = log_of(logs)
    ringfile = log.with_suffix(".ring")
    log.unlink()
    for content in (b"", bytes(8192), ring_of(), ring_of(2)):
        ringfile.write_bytes(content)
        found = Audit(logs, "--json").expect(FINDINGS)
        verdict = json.loads(found.out)
        assert verdict["counts"]["no-end"] == 1, verdict
        assert "damaged-file" not in verdict["counts"], verdict
        assert "missing-ranks" not in {f["rule"] for f in verdict["findings"] if f["ranks"] == [1]}, verdict
        assert verdict["looked"]["recovered"] == 2 * (content == ring_of(2))
    ringfile.write_bytes(ring_of(2, drained=3))
    Audit(logs).expect(FINDINGS, "its .jsonl is missing", "lost-events")


@pytest.mark.parametrize("content", [b"", b'{"event":"trace.begin","sch'])
def test_log_without_a_line(logs: Path, content: bytes) -> None:
    """A process that was killed before the first line of its log was whole is a rank that did not end in order."""
    log = log_of(logs)
    log.write_bytes(content)
    log.with_suffix(".ring").write_bytes(ring_of(2))
    verdict = json.loads(Audit(logs, "--json").expect(FINDINGS).out)
    assert [finding["ranks"] for finding in verdict["findings"] if finding["rule"] == "no-end"] == [[1]]
    assert verdict["looked"]["jobs"] == ["clean"]

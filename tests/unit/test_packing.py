"""Logs that are packed: what a reader makes of one that is no log."""

import gzip

import pytest

from tracehook.log import packing

LINES = b'{"event":"trace.begin"}\n' * 20


@pytest.mark.parametrize("kind", [".gz", ".zst"])
def test_a_file_that_unpacks_to_far_more_than_a_log_is_read_up_to_there(tmp_path, monkeypatch, kind):
    """Its text would fill the temporary folder, which may be memory."""
    monkeypatch.setattr(packing, "_ROOM", 1 << 16)
    monkeypatch.setattr(packing, "_CHUNK", 1 << 12)
    plain, packed, target = tmp_path / "plain", tmp_path / f"a.jsonl{kind}", tmp_path / "text"
    plain.write_bytes(LINES + bytes(1 << 24))
    if kind == ".gz":
        packed.write_bytes(gzip.compress(plain.read_bytes()))
    else:
        zstandard = pytest.importorskip("zstandard")
        packed.write_bytes(zstandard.compress(plain.read_bytes()))
    complaint = packing.unpack(packed, target)
    assert "no log packs into so few" in complaint
    assert target.read_bytes().startswith(LINES)
    assert target.stat().st_size <= max(1 << 16, packing._TIMES * packed.stat().st_size)


def test_a_log_is_read_whole(tmp_path):
    """One that is small may have many equal lines."""
    packed, target = tmp_path / "a.jsonl.gz", tmp_path / "text"
    packed.write_bytes(gzip.compress(LINES * 5000))
    assert packing.unpack(packed, target) == ""
    assert target.read_bytes() == LINES * 5000

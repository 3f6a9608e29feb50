"""Bytes of logs and rings changed at random."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.audits import CLEAN, FINDINGS, GOLDEN, UNUSABLE, Audit, log_of, ring_of


@st.composite
def _damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a change of some bytes."""
    kind = draw(st.sampled_from(["flip", "cut", "drop", "repeat", "insert", "digits"]))
    where = draw(st.floats(0, 1))
    length = draw(st.integers(1, 300))
    data = draw(st.binary(min_size=1, max_size=40))

    def change(text: bytes) -> bytes:
        at = int(where * len(text))
        match kind:
            case "flip":
                return text[:at] + data + text[at + len(data) :]
            case "cut":
                return text[:at]
            case "drop":
                return text[:at] + text[at + length :]
            case "repeat":
                return text[:at] + text[at : at + length] * 3 + text[at + length :]
            case "digits":
                other = text[at : at + length].translate(bytes.maketrans(b"123456", b"987650"))
                return text[:at] + other + text[at + length :]
        return text[:at] + data + text[at:]

    return change


DAMAGE = st.lists(_damage(), min_size=1, max_size=3)


@given(of_rank_0=DAMAGE, of_rank_1=DAMAGE, damaged_ring=st.booleans())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(400)
def test_any_damage(
    tmp_path_factory: pytest.TempPathFactory, of_rank_0: list[Any], of_rank_1: list[Any], damaged_ring: bool
) -> None:
    """Whatever happened to the bytes of logs and of a ring, an audit ends with a status that it documents."""
    directory = tmp_path_factory.mktemp("damaged")
    try:
        for file in GOLDEN.glob("clean.rank*.jsonl"):
            shutil.copy(file, directory)
        first, second = (log_of(directory, rank) for rank in (0, 1))
        if damaged_ring:
            second = second.with_suffix(".ring")
            second.write_bytes(ring_of(9, drained=3))
        for file, changes in ((first, of_rank_0), (second, of_rank_1)):
            for change in changes:
                file.write_bytes(change(file.read_bytes()))
        done = Audit(directory)
        assert done.status in (CLEAN, FINDINGS, UNUSABLE), done
        done.expect(done.status)
    finally:
        shutil.rmtree(directory)

"""Text for people: nothing of a log is obeyed, and a number of bytes looks the same wherever it is shown."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.generated_logs import write_job

from tracehook.log.text import encodable, in_bytes, many, printable

KIB, MIB, GIB, TIB = (1 << bits for bits in (10, 20, 30, 40))
HOSTILE = "a\nb\x1b[2J\u202ec\ud800\u2028"


@given(st.text(st.characters()) | st.just(HOSTILE))
def test_what_is_encodable_can_be_written(text: str) -> None:
    """UTF-8 and JSON can hold it, and what they could hold before is not changed."""
    shown = encodable(text)
    assert json.loads(json.dumps(shown).encode()) == shown.encode().decode()
    assert len(shown) == len(text)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert shown == text


@given(st.text(st.characters()), st.integers(3, 40))
def test_what_is_printable_is_one_line(text: str, most: int) -> None:
    """No character of it does anything, and it is not longer than it may be."""
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) == min(len(text), most)


def test_how_a_line_is_cut_and_marked() -> None:
    """What stands for a hidden character and for the rest of a long text is up to the caller."""
    assert printable(HOSTILE, 100) == "a b [2J c  "
    assert printable(HOSTILE, 100, instead="?") == "a?b?[2J?c??"
    assert printable("abcdef", 5) == "ab..."
    assert printable("abcdef", 5, end="\u2026") == "abcd\u2026"
    assert printable("abcde", 5) == "abcde"


SIZES = {
    0: ("0 bytes", "0 bytes"),
    1000: ("1000 bytes", "1000 bytes"),
    KIB: ("1 KiB", "1 KiB"),
    KIB + 512: ("1.5 KiB", "1536 bytes"),
    2 * MIB: ("2 MiB", "2 MiB"),
    3 * MIB // 2: ("1.5 MiB", "1536 KiB"),
    1000 * MIB: ("1000 MiB", "1000 MiB"),
    10 * GIB: ("10 GiB", "10 GiB"),
    10 * GIB + 2 * MIB: ("10 GiB", "10242 MiB"),
    3 * TIB: ("3 TiB", "3 TiB"),
    (1 << 63) - 1: ("8.389e+06 TiB", "9223372036854775807 bytes"),
}


@pytest.mark.parametrize("size", SIZES)
def test_a_number_of_bytes(size: int) -> None:
    """Shortly, or so that no digit is lost."""
    assert (in_bytes(size), in_bytes(size, exact=True)) == SIZES[size]


def test_a_number_of_bytes_that_is_not_known_or_not_whole() -> None:
    """A damaged log may lack a size, and a median lies between two."""
    assert in_bytes(None) == in_bytes(None, exact=True) == "? bytes"
    assert (in_bytes(0.5), in_bytes(2.5 * MIB)) == ("0 bytes", "2.5 MiB")


def test_rules_write_bytes_alike(tmp_path: Path) -> None:
    """The rules make their messages in SQL, where a macro writes what the exact form writes here."""
    pytest.importorskip("duckdb")
    from tracehook.audit.store import Store

    edges = [
        unit * factor + more for unit in (1, KIB, MIB, GIB, TIB) for factor in (1, 3, 1023, 1024) for more in (-1, 0, 1)
    ]
    sizes = [*SIZES, *edges, 1536 * KIB, 5 * GIB + 512, (1 << 61) - 1]
    write_job(tmp_path, 1)
    with Store(tmp_path) as store:
        store.use_macros()
        for kind in ("UBIGINT", "HUGEINT"):  # of a column, and of a sum over one
            rows = store.rows(f"SELECT n, in_bytes(n::{kind}) AS text FROM (SELECT unnest(?) AS n)", [sizes])
            assert {row["n"]: row["text"] for row in rows} == {size: in_bytes(size, exact=True) for size in sizes}
        assert store.rows("SELECT in_bytes(NULL::UBIGINT) AS text") == [{"text": in_bytes(None, exact=True)}]


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (0, "event", "0 events"),
        (1, "warning", "1 warning"),
        (1, "process", "1 process"),
        (1234, "process", "1,234 processes"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, words: str) -> None:
    """One thing is singular; none and several are plural, also of a noun that ends with s."""
    assert many(count, noun) == words

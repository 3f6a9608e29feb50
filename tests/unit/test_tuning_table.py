"""A tuning table: which size stands for which, who wins, and files that are none."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tracehook.policies import measured
from tracehook.tuning.table import Machine, Point, Row, Table, TableError, load

MACHINE = Machine("NVIDIA H200", "2.28.9", "2.11.0+cu130", multicast=False)
KIND = Row("all_reduce", "bfloat16", graph=True, ranks=4, hosts=1)


def table(*points: tuple[int, float, float]) -> Table:
    """Return a table of one kind."""
    return Table(MACHINE, rows={KIND: [Point(*point, gain=point[1] / point[2]) for point in points]})


@pytest.mark.parametrize(
    ("nbytes", "found"),
    [(1023, None), (1024, 1024), (2047, 1024), (2048, 2048), (3000, 2048), (4095, 2048), (4096, None), (0, None)],
)
def test_a_size_is_looked_up_in_the_row_below(nbytes: int, found: int | None) -> None:
    """Below the smallest one, and from twice the largest one, the table knows nothing."""
    point = table((1024, 10, 5), (2048, 10, 5)).find(KIND, nbytes)
    assert (point.nbytes if point else None) == found


def test_another_kind_is_not_known() -> None:
    """Another way of calling, or another number of ranks."""
    made = table((1024, 10, 5))
    assert made.find(KIND._replace(graph=False), 1024) is None
    assert made.find(KIND._replace(ranks=2), 1024) is None


@pytest.mark.parametrize(("gain", "wins"), [(1.2, True), (1.011, True), (1.01, False), (1.0, False), (0.9, False)])
def test_plain_memory_wins_ties(gain: float, wins: bool) -> None:
    """Symmetric memory has to be faster by more than the margin."""
    assert Point(1, 10.0, 10.0, gain).prefers_symmetric(0.01) is wins


@pytest.mark.parametrize(
    ("asked", "found"),
    [("bfloat16",) * 2, ("float16", "bfloat16"), ("int32", "float32"), ("float64", "bfloat16"), (None, "bfloat16")],
)
def test_a_type_of_the_same_size_stands_for_another(asked: str | None, found: str) -> None:
    """Without one, and without a type, the first one does."""
    made = table((1024, 10, 5))
    made.rows[KIND._replace(dtype="float32")] = [Point(1024, 1, 1, 1)]
    assert made.dtype("all_reduce", asked) == found
    assert made.dtype("all_gather", None) is None


def test_equal_tables_have_equal_digests(tmp_path: Path) -> None:
    """Also one that was written and read; an editor may have written 10 for 10.0, or the fields in another order."""
    made = table((1024, 10.5, 5.25), (2048, 11, 12))
    path = tmp_path / "tuned.json"
    path.write_text(made.as_json())
    assert load(path) == made
    assert load(path).digest == made.digest
    assert replace(made, margin=0.05).digest != made.digest
    path, other = tmp_path / "tuned.json", tmp_path / "other.json"
    path.write_text(GOOD)
    other.write_text(GOOD.replace('"plain_us": 10.0,', '"plain_us": 10,').replace("0.005", "5e-3").replace("\n", ""))
    assert path.read_text() != other.read_text()
    assert load(path).digest == load(other).digest


GOOD = table((1024, 10, 5)).as_json()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("", "no JSON"),
        ("\xff", "no tuning table|no JSON"),
        ("[1]", "no tuning table"),
        ('{"tracehook_tuning": 99}', "has format 99"),
        (GOOD.replace('"gpu"', '"cpu"'), "damaged"),
        (GOOD.replace('"plain_us": 10.0', '"plain_us": 0'), "damaged"),
        (GOOD.replace('"plain_us": 10.0', '"plain_us": "ten"'), "damaged"),
        (GOOD.replace('"ranks"', '"rank"'), "damaged"),
        (GOOD.replace('"plain_us": 10.0', '"plain_us": NaN'), "damaged"),
        (GOOD.replace('"plain_us": 10.0', '"plain_us": Infinity'), "damaged"),
        (GOOD.replace('"margin": 0.005', '"margin": NaN'), "damaged"),
        (GOOD.replace('"ranks": 4', '"ranks": "4"'), "damaged"),
        (GOOD.replace('"nbytes": 1024', '"nbytes": 1024.5'), "damaged"),
        (GOOD.replace('"nbytes": 1024', f'"nbytes": {1 << 60}'), "damaged"),
        ('{"tracehook_tuning": 1, "machine": {}, "margin": 0.005, "rows": []}', "damaged"),
        ("[" * 100_000, "no JSON"),
        (" " * ((1 << 26) + 1), "larger than"),
        (GOOD[: len(GOOD) // 2], "no JSON"),
    ],
)
def test_what_is_no_table_is_told_in_one_line(tmp_path: Path, text: str | None, told: str) -> None:
    """What was seen, and what to do."""
    path = tmp_path / "tuned.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TableError, match=told) as caught:
        load(path)
    assert "tracehook tune" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(10)
def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    """Nobody waits for somebody to write into it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TableError, match="no file: name the one"):
        load(pipe)


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    """The system refuses even to look."""
    with pytest.raises(TableError, match="File name too long: make it with `tracehook tune`"):
        load(tmp_path / ("x" * 300))


def test_all_threads_answer_from_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the file changes while they come."""
    read: list[int] = []

    def slow(_: Path) -> Table:
        read.append(1)
        time.sleep(0.1)
        return made

    made = table((1024, 10, 5))
    monkeypatch.setenv("SYMM_REGISTER_TUNED", str(tmp_path / "table.json"))
    monkeypatch.setattr(measured, "load", slow)
    policy = measured.Measured()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: policy._table, range(4)))
    assert found == [made] * 4
    assert read == [1]

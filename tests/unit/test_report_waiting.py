"""The report of a job that hung: who is to blame stands first, who waits for whom is drawn, and silence is seen."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")

from audit.goldens import DIRECTORY, unpack

from tracehook.audit.called import read_callers
from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.versions import nccl_name
from tracehook.views.report import cost, make_page, series
from tracehook.views.report.waiting import WaitPicture, draw_waiting


def _drawn(name: str, scratch: Path) -> WaitPicture | None:
    with Store(unpack(DIRECTORY / name, scratch)) as store:
        found = check(store)
        return draw_waiting(read_callers(store), found, cost.name_communicators(store))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on a collective that rank 5 skipped."""
    with Store(unpack(DIRECTORY / "rank-missing-skipped", tmp_path_factory.mktemp("report"))) as store:
        return make_page(store)


def test_the_culprit_stands_first(page: str) -> None:
    """The page opens with the first finding's sentence; findings come before what ran."""
    heading = re.search(r"<h1>(.*?)</h1>", page)
    assert heading is not None
    assert "rank 5 came to" in heading[1]
    headings = re.findall(r"<h2>([\w ]+)", page)
    assert headings[:3] == ["Findings", "Who waits for whom", "What ran"]


def test_who_waits_for_whom(tmp_path: Path) -> None:
    """Each rank that waits with its call, arrows to those who did not come, and the culprits marked, at the right."""
    picture = _drawn("rank-missing-skipped", tmp_path)
    assert picture is not None
    boxes = {box.lines[0]: box for box in picture.boxes}
    assert {name for name, box in boxes.items() if box.is_culprit} == {"rank 5"}
    assert boxes["rank 4"].lines[2] == "all_reduce of 16,384 float32, sum"
    assert boxes["rank 4"].lines[3].endswith("waits for rank 5")
    assert boxes["rank 5"].lines[3].endswith("waits for rank 4")  # in another call
    assert boxes["ranks 0-3"].x < boxes["rank 4"].x < boxes["rank 5"].x
    assert len(picture.arrows) == 8  # of ranks 0-3 to each of four; of each of these to another one
    assert all(box.y >= 0 and box.y + box.height < picture.height for box in picture.boxes)


def test_a_circle_is_drawn(tmp_path: Path) -> None:
    """Where ranks wait for each other, the one whose order of calls is another one is marked."""
    picture = _drawn("rank-missing-order", tmp_path)
    assert picture is not None
    assert [box.lines[0] for box in picture.boxes if box.is_culprit] == ["rank 1"]
    assert all(box.waits_for for box in picture.boxes)


def test_nobody_waits(tmp_path: Path) -> None:
    """Then the page has no such picture."""
    assert _drawn("clean", tmp_path) is None


def test_the_axis_goes_to_the_last_sign_of_life(tmp_path: Path) -> None:
    """A rank that fell silent lives on in the pictures, and is silent there, as long as its journal looked."""
    with Store(unpack(DIRECTORY / "rank-missing-skipped", tmp_path)) as store:
        found = check(store)
        places = series.find_places(store)
        span = series.find_span(store, [])
        time: dict[str, Any] = series.read_all(store, places, span)
    assert all(finding.ns is not None and finding.ns <= span.until_ns for finding in found)
    assert all(place.silent is not None and 3.5 < place.silent[1] - place.silent[0] < 4.5 for place in places)
    held = time["series"]["held"][5]
    assert [value for value in held if value is not None][-1] == 2.0
    assert sum(value is None for value in held[-10:]) < 8


def test_a_rank_that_ended_was_not_silent(tmp_path: Path) -> None:
    """Its log has its end, and nothing comes after that."""
    with Store(unpack(DIRECTORY / "clean", tmp_path)) as store:
        assert {place.silent for place in series.find_places(store)} == {None}


@pytest.mark.parametrize(("code", "name"), [("22809", "2.28.9"), (23007, "2.30.7"), ("2.28", "2.28"), ("", "")])
def test_the_version_of_nccl(code: str | int, name: str) -> None:
    """As people write it; what is no number, as it is."""
    assert nccl_name(code) == name


def test_times_are_told_to_the_millisecond(page: str) -> None:
    """Of each button that shows a moment; the moment itself is exact."""
    told = re.findall(r'data-seconds="[\d.]+"[^>]*>([^<]*)<', page)
    assert told
    assert all(re.fullmatch(r"[\d,]+\.\d{3} s", text) for text in told)

"""The report: one page that holds all it needs, whatever the logs hold."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.generated_logs import write_job

pytest.importorskip("duckdb")
pytest.importorskip("plotly")

from tracehook.audit.store import Store
from tracehook.views.report import make_page, page, phrases

_HOSTILE = (
    "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\"> {{ 7 * 7 }} {% raw %} "
    "javascript:alert(1) <!-- \u2028\u2029\u202e ' \" & \x00 \ud800"
)
_LONG = "<b>" * 60_000  # a line may have 1 MiB
_LOADS = ("src", "href", "action", "data", "poster", "srcset", "background", "formaction", "ping", "xlink:href")


class _Tags(HTMLParser):
    """The tags of a page, and the text of its script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._within = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts[-1] += data
        elif not self._within:
            self.text.append(data)

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def _page(directory: Path) -> str:
    with Store(directory) as store:
        return make_page(store)


def _edit(directory: Path, **fields: object) -> None:
    """Put `fields` into every line that has them."""
    for path in directory.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        edited = [{key: fields.get(key, value) for key, value in line.items()} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in edited))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of eight ranks; rank 1 was killed, rank 7 holds more than the others."""
    directory = tmp_path_factory.mktemp("job") / "logs"
    write_job(directory, 8, 300)
    return directory


@pytest.fixture(scope="module")
def parsed(job: Path) -> _Tags:
    """The page of that job."""
    return _Tags(_page(job))


def test_the_page_loads_nothing(parsed: _Tags) -> None:
    """No tag of the page names anything outside, and its policy forbids what its scripts might ask for."""
    for tag, attributes in parsed.tags:
        assert not set(attributes) & set(_LOADS), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "form", "base", "img")
    policy = next(a["content"] for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.split("style-src")[0]


def test_what_ran_and_what_was_found(parsed: _Tags) -> None:
    """Ranks, versions and the state of the logs are said, and a finding is a button that knows its moment."""
    said = re.sub(r"\s+", " ", " ".join(parsed.text))
    assert "0\u20137 (8 of 8)" in said
    assert "2026-11-21 12:00:00 UTC" in said
    assert "7 of 8 processes closed their logs; rank 1 did not" in said
    moments = [attributes for tag, attributes in parsed.tags if attributes.get("class") == "moment"]
    assert "no-end" in said
    assert {"1"} <= {attributes["data-place"] for attributes in moments}


def test_ranks_that_differ_are_named(parsed: _Tags) -> None:
    """Of the ranks, the one that holds more than the others is a button in the table of those that differ."""
    named = {attributes["data-place"] for _, attributes in parsed.tags if attributes.get("class") == "place"}
    assert "7" in named
    assert "3" not in named


def test_readings_are_what_the_log_says(job: Path, parsed: _Tags) -> None:
    """At each reading the bytes held are the allocator's own total, which the log tells after each change."""
    time = parsed.data["time"]
    lines = [json.loads(line) for line in next(job.glob("*.rank3.*")).read_text().splitlines()]
    totals = [((line["t_ns"] - 10**10) / 1e9, line["total"] / 2**20) for line in lines if "total" in line]
    step = (time["until"] - time["from"]) / time["bins"]
    for bin_, held in enumerate(time["series"]["held"][3]):
        moment = time["from"] + (bin_ + 1) * step
        if held is not None and moment < totals[-1][0]:
            assert held == pytest.approx([0, *(total for t, total in totals if t <= moment)][-1])
    assert max(v for v in time["bands"]["held"]["high"] if v) > max(v for v in time["bands"]["held"]["mid"] if v)


@pytest.mark.parametrize("text", [_HOSTILE, _LONG], ids=["markup", "long"])
def test_hostile_texts_stay_texts(tmp_path: Path, text: str) -> None:
    """Whatever the strings of a log hold: the page has the same elements, and is not much longer."""
    directory = tmp_path / "logs"
    write_job(directory, 2, 100)
    plain = _Tags(_page(directory))
    size = len(_page(directory))
    if text == _HOSTILE:
        text = text.replace("\ud800", "")  # which no log file in UTF-8 can hold unescaped, and DuckDB does not take
    _edit(directory, host=text, argv=[text], allocator=text, torch=text, answer=text, policy=[text])
    _edit(directory, comm=text[:9000], addr=text[:9000])
    (directory / "notes.txt").write_text(text)
    made = _page(directory)
    hostile = _Tags(made)
    assert len(made) < size + 100_000
    assert len(plain.scripts) == len(hostile.scripts)
    assert plain.scripts[1:] == hostile.scripts[1:]
    assert not {"img", "b"} & {tag for tag, _ in hostile.tags} - {tag for tag, _ in plain.tags}
    assert not [a for _, a in hostile.tags if "onerror" in a]
    assert "\u2028" not in made
    assert "\u202e" not in made
    assert "49" not in re.findall(r"\{\{.*?\}\}", " ".join(hostile.text))


def test_hostile_messages_stay_texts() -> None:
    """What a finding says is escaped by the template, and nothing in the data can end its element."""
    assert "<" not in page.encode({"a": _HOSTILE})
    assert json.loads(page.encode({"a": _HOSTILE}))["a"] == _HOSTILE
    assert len(phrases.short(_LONG)) == 200
    assert "\n" not in phrases.short("a\nb\u2028c")


def test_hostile_numbers(tmp_path: Path) -> None:
    """Numbers that no job has break nothing: times without end, devices that are none, negative ranks."""
    write_job(tmp_path, 2, 100)
    _edit(tmp_path, us=1e308, size=2**64 - 1, world_size=2**31 - 1, pool_bytes=2**64 - 1, count=2**62)
    said = re.sub(r"\s+", " ", " ".join(_Tags(_page(tmp_path)).text))
    assert "no log of 2\u20132147483646" in said
    _edit(tmp_path, device=-5)
    assert "nothing to draw" in " ".join(_Tags(_page(tmp_path)).text)


def test_many_ranks_stay_readable(tmp_path: Path) -> None:
    """Of 64 ranks all are in the pictures."""
    write_job(tmp_path, 64, 250)
    made = _page(tmp_path)
    parsed = _Tags(made)
    assert len(made) < 8_000_000
    assert 64 == len(parsed.data["places"]) == len(parsed.data["time"]["series"]["held"])


@pytest.mark.parametrize(
    ("present", "world", "expected"),
    [
        ([0, 1, 2], 3, (0, "")),
        ([0, 2, 5], 8, (5, "1, 3, 4, 6, 7")),
        ([], 2**31 - 1, (2**31 - 1, "0\u20132147483646")),
        (range(0, 100, 2), 100, (50, "1, 3, 5, 7, 9, 11, 13, 15 and 42 more")),
        ([7], 4, (4, "0\u20133")),
    ],
)
def test_missing_ranks(present: Any, world: int, expected: tuple[int, str]) -> None:
    """Ranks without a log are told as ranges, and never counted one by one."""
    assert expected == phrases.missing_ranks(present, world)

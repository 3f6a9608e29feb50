"""The report in a browser: what it draws, what its controls do, and that it asks for nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import browser
from support.generated_logs import write_job

pytest.importorskip("duckdb")
pytest.importorskip("plotly")

from audit.goldens import DIRECTORY, unpack

from tracehook.audit.store import Store
from tracehook.views.report import make_page

_PICTURES = ("memory", "heat", "cost", "pools")
_HOSTILE = (
    "</script><script>document.title='ran'</script><img src=http://127.0.0.1:9/ onerror=\"document.title='ran'\">"
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """A browser that all tests of this file use."""
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium on PATH (chromium, chromium-browser, google-chrome)")
    with browser.browse(program, tmp_path_factory.mktemp("chromium")) as page:
        yield page


def _write(directory: Path, ranks: int, events: int, **begin: Any) -> Path:
    write_job(directory / "logs", ranks, events, **begin)
    return _report(directory)


def _report(directory: Path) -> Path:
    path = directory / "report.html"
    with Store(directory / "logs") as store:
        path.write_bytes(make_page(store).encode())
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on eight ranks."""
    return _write(tmp_path_factory.mktemp("report"), 8, 300)


def _open(chromium: browser.Page, path: Path, dark: bool = False) -> None:
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(path, dark=dark)
    drawn = " && ".join(f"document.querySelector('#{name} .main-svg')" for name in _PICTURES)
    chromium.wait(f"Boolean({drawn})")


def _quiet(chromium: browser.Page) -> None:
    assert chromium.complaints == []
    foreign = [url for url in chromium.requests if not url.startswith(("file:", "data:"))]
    assert foreign == []
    assert len({url for url in chromium.requests if url.startswith("file:")}) == 1


@pytest.mark.parametrize("dark", [False, True])
def test_all_is_drawn_and_nothing_asked_for(chromium: browser.Page, report: Path, dark: bool) -> None:
    """Every picture has its marks; the console is empty; no request leaves the page."""
    _open(chromium, report, dark)
    assert chromium.value("document.querySelectorAll('#heat .hm image').length") == 1
    for picture, marks in (("memory", ".scatterlayer path"), ("cost", ".points path")):
        assert chromium.value(f"document.querySelectorAll('#{picture} {marks}').length") > 4, picture
    _quiet(chromium)


def test_a_finding_leads_to_its_moment(chromium: browser.Page, report: Path) -> None:
    """The time of a finding zooms all pictures, marks the moment and chooses the rank."""
    _open(chromium, report)
    chromium.value("document.querySelector('.findings button.moment').click()")
    chromium.wait("document.getElementById('place').value === '1'")
    moment = chromium.value("Number(document.querySelector('.findings button.moment').dataset.seconds)")
    chromium.wait("document.getElementById('memory').layout.shapes.length > 0")
    for picture in ("memory", "heat", "pools"):
        begin, end = chromium.value(f"document.getElementById('{picture}').layout.xaxis.range")
        assert begin < moment < end
        assert end - begin < 10
        assert chromium.value(f"document.getElementById('{picture}').layout.shapes.at(-1).x0") == moment
    chromium.value("document.getElementById('whole').click()")
    chromium.wait("document.getElementById('memory').layout.shapes.length === 0")
    _quiet(chromium)


def test_pictures_follow_each_other_in_time(chromium: browser.Page, report: Path) -> None:
    """Zooming into one picture zooms the others that have a time axis."""
    _open(chromium, report)
    chromium.value("Plotly.relayout('memory', {'xaxis.range[0]': 20, 'xaxis.range[1]': 30}).then(() => 1)")
    for picture in ("heat", "pools"):
        chromium.wait(f"JSON.stringify(document.getElementById('{picture}').layout.xaxis.range) === '[20,30]'")
    _quiet(chromium)


def test_a_rank_and_a_measure_can_be_chosen(chromium: browser.Page, report: Path) -> None:
    """The selects work without a mouse."""
    _open(chromium, report)
    chromium.value("document.getElementById('place').focus()")
    for _ in range(8):
        for kind in ("keyDown", "keyUp"):
            chromium.ask(
                "Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40
            )
    chromium.wait("document.getElementById('place').value === '7'")
    for measure in ("registered", "missing", "window", "pool", "idle", "ms"):
        chromium.value(
            f"(() => {{ const s = document.getElementById('measure'); s.value = '{measure}'; "
            "s.dispatchEvent(new Event('change')); })()"
        )
    unit = chromium.value("document.getElementById('heat').data[0].colorbar.title.text")
    assert unit == "ms"
    _quiet(chromium)


def test_no_picture_can_be_sent_away(chromium: browser.Page, report: Path) -> None:
    """Of plotly's buttons, none sends the data anywhere, and no link leads outside."""
    _open(chromium, report)
    titles = set(chromium.value("[...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)"))
    assert titles == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}
    assert chromium.value("document.querySelectorAll('a[href], a[*|href]').length") == 0


def test_hostile_texts_do_not_run(chromium: browser.Page, tmp_path: Path) -> None:
    """Markup in hosts, programs, addresses, keys and answers is shown as text, also in plotly's labels."""
    _write(tmp_path, 2, 100, host=_HOSTILE, argv=[_HOSTILE], torch=_HOSTILE, policy=[_HOSTILE])
    for path in (tmp_path / "logs").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        changes = {"addr": _HOSTILE, "comm": _HOSTILE, "answer": _HOSTILE}
        lines = [{key: changes.get(key, value) for key, value in line.items()} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _open(chromium, _report(tmp_path))
    chromium.value("document.querySelectorAll('.moment, .place').forEach((button) => button.click())")
    assert chromium.value("document.title") == "tracehook report"
    assert chromium.value("document.querySelectorAll('img').length") == 0
    _quiet(chromium)


def test_linked_pictures_lie_below_each_other(chromium: browser.Page, report: Path) -> None:
    """A moment has the same place in each of them, and plotly's buttons lie on no title, legend or scale."""
    _open(chromium, report)
    sizes = [
        chromium.value(
            f"(() => {{ const l = document.getElementById('{picture}')._fullLayout;"
            "return [l.width, l._size.l, l._size.w]; })()"
        )
        for picture in ("memory", "heat", "pools")
    ]
    assert len({tuple(size) for size in sizes}) == 1
    below = chromium.value(
        """[...document.querySelectorAll('.picture')].flatMap((picture) => {
             const bar = picture.querySelector('.modebar-group').getBoundingClientRect();
             return [...picture.querySelectorAll('.g-xtitle, .g-ytitle, .traces, .cbtitle, .cbaxis')]
               .map((text) => text.getBoundingClientRect())
               .filter((box) => box.width && box.right > bar.left && box.left < bar.right
                 && box.bottom > bar.top && box.top < bar.bottom).map((box) => picture.id);
           })"""
    )
    assert below == []


def test_a_hang_is_seen(chromium: browser.Page, tmp_path: Path) -> None:
    """Who waits for whom is drawn, the silence of each rank too, and a click on a late finding shows its moment."""
    path = tmp_path / "report.html"
    with Store(unpack(DIRECTORY / "rank-missing-skipped", tmp_path)) as store:
        path.write_bytes(make_page(store).encode())
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(path)
    chromium.wait("Boolean(document.querySelector('#heat .main-svg') && document.querySelector('#memory .main-svg'))")
    assert chromium.value("document.querySelectorAll('#waiting .culprit').length") == 1
    spilt = chromium.value(
        """[...document.querySelectorAll('#waiting g')].filter((box) => [...box.querySelectorAll('text')].some(
             (text) => text.getBBox().width > box.querySelector('rect').width.baseVal.value - 12)).length"""
    )
    assert spilt == 0
    assert chromium.value("document.querySelectorAll('#heat .bars path').length") == 8
    chromium.value("[...document.querySelectorAll('.findings button.moment')].at(-1).click()")
    chromium.wait("document.getElementById('memory').layout.shapes.length > 1")
    late = chromium.value("Number([...document.querySelectorAll('.findings button.moment')].at(-1).dataset.seconds)")
    drawn = chromium.value("document.getElementById('memory').data.find((d) => d.name === 'held').x.at(-1)")
    assert late <= drawn
    assert "silent" in chromium.value("document.getElementById('memory').textContent")
    _quiet(chromium)


def test_what_a_script_from_elsewhere_could_do(chromium: browser.Page, report: Path) -> None:
    """Were there a hole, the page's policy runs no script that is not its own, and lets none ask for anything."""
    _open(chromium, report)
    script = "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)"
    chromium.value(script)
    assert chromium.value("document.title") == "tracehook report"
    refused = chromium.value("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
    assert refused == "refused"
    assert any("Content Security Policy" in complaint for complaint in chromium.complaints)


def test_many_ranks_are_drawn(chromium: browser.Page, tmp_path: Path) -> None:
    """Of 260 ranks a row of the heat map stands for several, and shows the one that differs."""
    _open(chromium, _write(tmp_path, 260, 50))
    assert "A row stands for 3 ranks" in chromium.value("document.getElementById('heat-note').textContent")
    assert chromium.value("document.getElementById('heat').data[0].z.length") == 87
    assert "rank 259" in chromium.value("document.getElementById('heat').data[0].text.at(-1)")
    _quiet(chromium)

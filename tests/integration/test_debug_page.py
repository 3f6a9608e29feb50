"""tracehook's page in torch's debug server shows what the commands print of the job."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from audit.goldens import GOLDENS, unpack

from tracehook import DebugPage

HUNG = next(golden for golden in GOLDENS if golden.name == "rank-missing-skipped")
BLAMED = (HUNG.path / "expected.txt").read_text().splitlines()[-2]  # the last one is the exit status


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> DebugPage:
    """The page of a job that hung, as it comes to a server in another process."""
    found: DebugPage = pickle.loads(pickle.dumps(DebugPage(unpack(HUNG.path, tmp_path_factory.mktemp("<logs>")))))
    return found


@pytest.fixture
def address(page: DebugPage) -> Iterator[str]:
    """Serve the page on a free port."""
    frontend = pytest.importorskip("torch.distributed.debug._frontend", reason="this torch has no debug server")
    server = frontend.FrontendServer(0, [page])
    yield f"http://localhost:{server._server.server_address[1]}"
    server._server.shutdown()
    server._server.server_close()
    server.join()


def test_the_page_names_the_rank_to_blame(address: str) -> None:
    """By the audit's last line. Text of a log, and a directory, is no HTML."""
    with urlopen(f"{address}/tracehook", timeout=100) as answer:
        shown = answer.read().decode()
    assert shown.index("<h2>tracehook audit") < shown.index("<h2>tracehook watch") < shown.index("<h2>tracehook stacks")
    assert '<a href="/tracehook">tracehook</a>' in shown
    assert "&lt;logs&gt;" in shown
    assert "<logs>" not in shown
    assert "First divergence" in shown


def test_what_the_server_writes_from_time_to_time_is_the_same(page: DebugPage) -> None:
    """The verdict, and that no process of it runs here."""
    said = page.dump()
    assert BLAMED in said
    assert "no process of this job runs on this host" in said
    assert page.dump_filename() == "tracehook"


def test_without_a_directory_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable serves, if there is one."""
    monkeypatch.delenv("SYMM_REGISTER_LOG", raising=False)
    with pytest.raises(ValueError, match=r"expected the directory of the logs: give it, or set SYMM_REGISTER_LOG$"):
        DebugPage()
    monkeypatch.setenv("SYMM_REGISTER_LOG", "logs")
    assert f"{Path('logs').absolute()}" in DebugPage().dump()

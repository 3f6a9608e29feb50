"""The build reads which torch a folder has, and runs nothing of it."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracehook


@pytest.fixture(scope="module")
def locate() -> SimpleNamespace:
    """Return what the script has."""
    return SimpleNamespace(**runpy.run_path(str(Path(tracehook.__file__).parent / "cpp" / "torch" / "locate.py")))


def folder(tmp_path: Path, version: str) -> Path:
    """Return a folder like that of a wheel of torch, whose version.py has this text."""
    header = tmp_path / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    header.parent.mkdir(parents=True)
    header.touch()
    (tmp_path / "version.py").write_text(version)
    return tmp_path


@pytest.mark.parametrize(
    "line", ["__version__ = '2.11.0+cu130'", '__version__ = "2.11.1"', "__version__: str = '2.11.0a0+git7'"]
)
def test_the_version_is_read_and_not_run(locate: SimpleNamespace, tmp_path: Path, line: str) -> None:
    """The folder may come from anywhere: what stands around the version is not executed."""
    assert locate.minor_of(folder(tmp_path, f"raise SystemError('executed')\n{line}\n")) == "2.11"


def test_no_version(locate: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without a version is refused in one line that says what was expected."""
    with pytest.raises(SystemExit):
        locate.minor_of(folder(tmp_path, "cuda = None\n"))
    assert capsys.readouterr().err == (
        f"tracehook: {tmp_path}/version.py names no version; expected a line like __version__ = '2.11.0'\n"
    )

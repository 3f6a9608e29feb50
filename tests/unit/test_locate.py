"""The build reads which torch a folder has, and runs nothing of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import tracehook


@pytest.fixture(scope="module")
def locate() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location(
        "locate", Path(tracehook.__file__).parent / "cpp" / "torch" / "locate.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def test_the_version_is_read_and_not_run(locate: ModuleType, tmp_path: Path, line: str) -> None:
    """The folder may come from anywhere: what stands around the version is not executed."""
    assert locate.minor_of(folder(tmp_path, f"raise SystemError('executed')\n{line}\n")) == "2.11"


def test_no_version(locate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without a version is refused in one line that says what was expected."""
    with pytest.raises(SystemExit):
        locate.minor_of(folder(tmp_path, "cuda = None\n"))
    assert capsys.readouterr().err == (
        f"tracehook: {tmp_path}/version.py names no version; expected a line like __version__ = '2.11.0'\n"
    )

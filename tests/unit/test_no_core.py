"""A tracehook without a native part says in one line what was imported, what that hides, and what to do."""

from pathlib import Path

import pytest

from tracehook.hook.library import why_no_core


def package(folder: Path, *files: str) -> Path:
    """Make a package in a folder; return it."""
    for name in files:
        path = folder / "tracehook" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder / "tracehook"


@pytest.mark.parametrize("hidden", [True, False])
def test_the_sources_were_imported(tmp_path: Path, hidden: bool) -> None:
    """The line names the folder, and the installation that it hides, if there is one."""
    own = package(tmp_path / "checkout", "__init__.py", "cpp/CMakeLists.txt")
    installed = package(
        tmp_path / "site", "__init__.py", *(["_core.cpython-311-x86_64-linux-gnu.so"] if hidden else [])
    )
    line = why_no_core(own, [str(own.parent), str(installed.parent)])
    assert line.startswith(f"{own} was imported, which has no native part (tracehook._core)")
    assert line.endswith(f"pip install --editable {own.parent}")
    assert (f"hides {installed}" in line) == hidden
    assert (f"keep the program out of {own.parent}" in line) == hidden


def test_an_installation_that_only_reads(tmp_path: Path) -> None:
    """It has no sources and hides nothing: there it is as it should be, and the line says what a job needs."""
    own = package(tmp_path / "site", "__init__.py")
    assert why_no_core(own, [str(own.parent)]).startswith("this installation has no native part (tracehook._core)")

"""Which hook library fits which torch."""

import pytest

from tracehook.hook import library as hook_library


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Pretend that hook libraries for some torch minors are installed."""
    (tmp_path / "_hooks").mkdir()
    for minor in ("2.9", "2.11", "2.10"):
        (tmp_path / "_hooks" / f"libtracehook_torch{minor}.so").touch()
    (tmp_path / "_hooks" / "README").touch()
    monkeypatch.setattr(hook_library, "directory", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.11.0", "2.11"), ("2.11.0+cu130", "2.11"), ("2.12.0a0+git1234", "2.12"), ("3.0.1", "3.0")],
)
def test_the_minor_decides(version, minor):
    """The class layout that the library depends on changes between minors of torch, not between patches or builds."""
    assert hook_library.minor_of(version) == minor


@pytest.mark.usefixtures("installed")
def test_what_is_installed_is_listed_in_order():
    """Minors are numbers: 2.9 comes before 2.10."""
    assert hook_library.available() == ["2.9", "2.10", "2.11"]


@pytest.mark.parametrize(
    ("version", "minor"), [("2.11.4+cu130", "2.11"), ("2.1.0", None), ("2.12.0", None), ("3.11.0", None)]
)
def test_the_library_of_a_version_is_found(installed, version, minor):
    """Every patch of a minor uses the library of that minor; there is none that nearly fits another."""
    wanted = installed / "_hooks" / f"libtracehook_torch{minor}.so" if minor else None
    assert hook_library.path_for(version) == wanted


def test_nothing_installed_is_no_error(tmp_path, monkeypatch):
    """Where torch has no CUDA no hook library is built, and asking for it is answered all the same."""
    monkeypatch.setattr(hook_library, "directory", lambda: tmp_path)
    assert (hook_library.available(), hook_library.path_for("2.11.0")) == ([], None)

"""Whether an import runs what is installed, or a file of the program."""

import sys
from pathlib import Path

import pytest

from tracehook.log.installed import is_installed


@pytest.mark.parametrize("name", ["colorsys", "rich", "attr", "nothing_is_called_so"])
def test_a_file_of_the_program_is_told_from_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Of Python's own modules, too: the program may have a file of that name, and its code must not run."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert is_installed(name)
    (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed(name)

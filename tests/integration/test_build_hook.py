"""`tracehook build-hook` compiles a library for the installed torch, or says in one line why not."""

import shutil
from pathlib import Path

import pytest
from support.processes import SCRIPTS, Finished, run
from support.rehearsal import rehearse

from tracehook.hook import library as hook_library


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a copy of the installation's native part, with no library for any torch."""
    folder = tmp_path / "installed"
    shutil.copytree(hook_library.directory(), folder, ignore=shutil.ignore_patterns("libtracehook_torch*", "_emulated"))
    return folder


def build(folder: Path, **env: str) -> Finished:
    """Run the command on a copy of the installation."""
    script = folder.parent / "build.py"
    script.write_text(
        "import sys; from pathlib import Path; from tracehook.hook import library\n"
        f"library.directory = lambda: Path({str(folder)!r})\n"
        "from tracehook.commands import main; sys.argv[1:] = ['build-hook']; main()\n"
    )
    return run([SCRIPTS / "python", script], env, timeout=150)


def test_a_library_for_this_torch(copied: Path, tmp_path: Path) -> None:
    """What it compiled attaches in a job, and follows its segments."""
    import torch

    made = build(copied)
    assert made.status == 0, made.output
    minor = hook_library.minor_of(torch.__version__)
    library = copied / "_hooks" / f"libtracehook_torch{minor}.so"
    assert library.exists()
    assert "tracehook doctor" in made.out
    assert [path.name for path in (copied / "_hooks").iterdir() if path.name.startswith(".")] == []
    job = rehearse("with_library.py", str(library), log=tmp_path / "logs")
    job.assert_good()
    assert job.facts()["status"]["state"] == "on"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"CXX": "/bin/false"}, "false failed: 1"),
        ({"CXX": "", "PATH": "/nowhere"}, "no C++ compiler: install g++, or set CXX"),
    ],
)
def test_no_compiler(copied: Path, env: dict[str, str], said: str) -> None:
    """One line, status 1, and nothing is left behind."""
    made = build(copied, **env)
    assert (made.status, made.err.strip()) == (1, f"tracehook build-hook: {said}")
    assert [path.name for path in (copied / "_hooks").iterdir()] == ["source"]

"""``tracehook build-hook``: compile the hook library for a torch that this installation has none for."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import typer

from tracehook.hook import library

_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-Wl,--no-as-needed",
)


def build_hook() -> None:
    """Compile the hook library for the installed torch.

    It takes the headers of torch, and keeps the library beside the others. It needs a C++20 compiler (CXX, or g++)
    and the CUDA headers as packages. tracehook never does this by itself: an unknown torch may have changed what
    the library relies on. Run `tracehook doctor` afterwards. Exit status 1 if it cannot compile the library.
    """
    folder = library.directory() / "_hooks"
    minor, includes = _located(folder / "source" / "torch" / "locate.py")
    target = folder / f"libtracehook_torch{minor}.so"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            made = Path(scratch) / target.name
            _compile(folder / "source", includes, made)
            made.replace(target)
    except OSError as problem:
        _fail(f"{problem.filename or folder}: {problem.strerror}")
    typer.echo(f"{target}: for torch {minor}. Try it: tracehook doctor")


def _located(script: Path) -> tuple[str, list[Path]]:
    """Return the minor of the installed torch, and the folders with its headers and CUDA's."""
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if found.returncode:
        _fail(found.stderr.strip().removeprefix("tracehook: "))
    if not found.stdout.strip():
        _fail("no CUDA build of torch is installed, so there is nothing to hook")
    minor, _, folders = found.stdout.splitlines()[0].partition("|")
    return minor, [Path(folder) for folder in folders.split(",")]


def _compile(source: Path, includes: list[Path], made: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    if not compiler:
        _fail("no C++ compiler: install g++, or set CXX")
    libraries = includes[0].parent / "lib"
    command = [*compiler, *_FLAGS, f"-I{source}", *(part for folder in includes for part in ("-isystem", str(folder)))]
    command += [str(source / "torch" / "hook.cpp"), f"-L{libraries}", "-lc10", "-lc10_cuda", "-o", str(made)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        _fail(f"{Path(compiler[0]).name} failed: {lines[0] if lines else done.returncode}")


def _fail(why: str) -> NoReturn:
    typer.echo(f"tracehook build-hook: {why}", err=True)
    raise typer.Exit(1)

"""Cores with one bug each: built from the sources with a patch of mutations/, and put in place of the installed one."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.rehearsal import ROOT

from audit.goldens import HERE
from tracehook.hook import library as hook_library

MUTATIONS = HERE / "mutations"

# Found before the installed package is: the editable install has a finder of its own.
SITE = '''
import importlib.util
import sys
from pathlib import Path


class Mutant:
    """Finds one module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tracehook._core":
            (file,) = Path(__file__).parent.glob("_core.*.so")
            return importlib.util.spec_from_file_location(name, file)


sys.meta_path.insert(0, Mutant)
'''


@functools.cache
def _scratch() -> Path:
    path = Path(tempfile.mkdtemp(prefix="tracehook-mutants-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    cmake = [Path(sys.executable).parent / "cmake", "-S", path, "-B", path / "build", "-G", "Ninja"]
    _restore(path)
    _do(*cmake, "-DCMAKE_BUILD_TYPE=Debug", f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={_pybind11()}")
    return path


def _restore(path: Path) -> None:
    """Copy the sources, those that differ: times decide what is compiled again."""
    for source in [ROOT / "CMakeLists.txt", *(ROOT / "tracehook" / "cpp").rglob("*")]:
        copy = path / source.relative_to(ROOT)
        if source.is_file() and (not copy.exists() or copy.read_bytes() != source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def _pybind11() -> str:
    import pybind11  # needed for building only

    return str(pybind11.get_cmake_dir())


def _do(*command: object, cwd: Path | None = None) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed\n{done.stdout}\n{done.stderr}")


def apply(mutation: str, sources: Path) -> None:
    """Apply a patch to a copy of the sources; raises RuntimeError if it does not fit any more."""
    _do("patch", "-p1", "--forward", "--fuzz=0", "-i", MUTATIONS / f"{mutation}.patch", cwd=sources)


def build(mutation: str) -> Path:
    """Return a directory that, in PYTHONPATH, makes tracehook use the core with that bug."""
    path = _scratch()
    _restore(path)
    apply(mutation, path)
    _do(Path(sys.executable).parent / "ninja", "-C", path / "build", "-j2", "_core")
    site = path / "sites" / mutation
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    (core,) = (path / "build").rglob("_core.*.so")
    shutil.copyfile(core, site / core.name)
    for name in ("_hooks", "_emulated"):
        (site / name).symlink_to(hook_library.directory() / name)
    (site / "sitecustomize.py").write_text(SITE)
    return site

"""Cores with one bug each: one source with a patch of mutations/ among the objects of the last build."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
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


def _do(*command: object, cwd: Path | None = None) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed\n{done.stdout}\n{done.stderr}")


def apply(mutation: str, sources: Path) -> None:
    """Apply a patch to a copy of the sources; raises RuntimeError if it does not fit any more."""
    _do("patch", "-p1", "--forward", "--fuzz=0", "-i", MUTATIONS / f"{mutation}.patch", cwd=sources)


class NotBuiltHere(RuntimeError):
    """The running tracehook was not built from these sources."""


def build(mutation: str, scratch: Path) -> Path:
    """Make, in `scratch`, a directory that in PYTHONPATH makes tracehook use the core with that bug; return it.

    What includes the changed source is compiled, and linked with the other objects of the last build.
    """
    tree, (*compilations, link) = _commands()
    text = (MUTATIONS / f"{mutation}.patch").read_text()
    (name,) = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
    sources = scratch / "sources"
    shutil.copytree((ROOT / name).parent, (sources / name).parent)
    apply(mutation, sources)
    site = scratch / "site"
    site.mkdir()
    changed = site / "changed.o"
    unit, compilation = _unit_of(ROOT / name, compilations)
    mutated = sources / unit.name
    mutated.write_text(unit.read_text().replace(str(ROOT / name), str(sources / name)))
    words = shlex.split(compilation.replace(str(unit), str(mutated)))
    # A mutant leaves names unused: its warnings are no errors, also where the build's own are.
    _do(*_with_output(words, changed), "-O0", "-g0", "-Wno-error", cwd=tree)
    words = shlex.split(link.removeprefix(": &&").removesuffix("&& :"))
    # Before the archive, from which the linker then does not take that object.
    archive = next(at for at, word in enumerate(words) if word.endswith(".a"))
    words.insert(archive, str(changed))
    _do(*_with_output(words, site / Path(words[words.index("-o") + 1]).name), cwd=tree)
    changed.unlink()
    for folder in ("_hooks", "_emulated"):
        (site / folder).symlink_to(hook_library.directory() / folder)
    (site / "sitecustomize.py").write_text(SITE)
    return site


def _commands() -> tuple[Path, list[str]]:
    """Return the folder in which tracehook was built last for this Python, and the commands for its core."""
    folders = sorted((ROOT / "build").glob("*/.ninja_log"), key=lambda log: log.stat().st_mtime, reverse=True)
    for cache in (log.with_name("CMakeCache.txt") for log in folders):
        if f"={sys.executable}\n" in cache.read_text():
            ninja = [str(Path(sys.executable).parent / "ninja"), "-C", str(cache.parent), "-t", "commands", "_core"]
            found = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout
            return cache.parent, [line for line in found.splitlines() if " -o " in line]
    raise NotBuiltHere("make build comes first")


def _unit_of(source: Path, compilations: Iterable[str]) -> tuple[Path, str]:
    """Return the file that CMake made of this source and others, and the command that compiles it."""
    for line in compilations:
        unit = Path(line.rpartition(" -c ")[2])
        if f'"{source}"' in unit.read_text():
            return unit, line
    raise LookupError(f"{source} is in no unit of the core: see add_unit in tracehook/cpp/CMakeLists.txt")


def _with_output(words: list[str], file: Path) -> list[str]:
    at = words.index("-o") + 1
    return [*words[:at], str(file), *words[at + 1 :]]

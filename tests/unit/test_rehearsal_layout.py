"""The rehearsal has walls: production knows nothing of it, and it takes from production what a short list allows."""

import re
from pathlib import Path

import pytest

from unit.test_layout import HOUSE, MODULES

CPP = HOUSE / "cpp"
ROOF = CPP / "rehearsal"
# What the files of a room may include besides those of their own room.
MAY_INCLUDE = {
    "cuda": set(),
    "nccl": {f"rehearsal/cuda/{name}.h" for name in ("device", "gpu", "identity")}
    | {f"nccl/{name}.h" for name in ("abi", "caller", "key", "traits")},
    "values": {f"rehearsal/cuda/{name}.h" for name in ("device", "host_limits")},
}
SEAMS = {"tracehook._autoload", "tracehook.commands.doctor", "tracehook.commands.rehearse"}


def included(file: Path) -> set[str]:
    """Return what a file of C++ includes of this repository, as paths below `cpp`."""
    names = re.findall(r'#include "([^"]+)"', file.read_text())
    beside = file.parent.relative_to(CPP).as_posix()
    return {name if "/" in name else f"{beside}/{name}" for name in names}


def sources(folder: Path) -> list[Path]:
    """Return the files of C++ in a folder and below it."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h", ".def"))


def test_production_knows_nothing_of_the_rehearsal() -> None:
    """What a job with real devices loads is compiled without these files, and only the seams import it."""
    production = [file for file in sources(CPP) if ROOF not in file.parents]
    assert production
    for file in production:
        assert not {name for name in included(file) if name.startswith("rehearsal/")}, file.name
    importers = {
        name for name, imported in MODULES.items() if any(other.split(".")[1:2] == ["rehearsal"] for other in imported)
    }
    assert {name for name in importers if not name.startswith("tracehook.rehearsal")} == SEAMS


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_room_of_the_rehearsal_includes_what_the_list_allows(room: str) -> None:
    """The emulated CUDA stands alone; NCCL and the values use its C interface, and NCCL four files of facts."""
    used = set().union(*map(included, sources(ROOF / room)))
    assert {name for name in used if not name.startswith(f"rehearsal/{room}/")} == MAY_INCLUDE[room]


def test_every_folder_of_the_rehearsal_is_a_room() -> None:
    """No file of C++ lies beside the rooms, and no room is without a list and a README of at most 60 lines."""
    assert {file.relative_to(ROOF).parts[:-1] for file in sources(ROOF)} == {(room,) for room in MAY_INCLUDE}
    for folder in (ROOF, *(ROOF / room for room in MAY_INCLUDE)):
        assert len((folder / "README.md").read_text().splitlines()) <= 60, folder.name

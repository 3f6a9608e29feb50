"""Rooms import downwards only: commands -> views -> audit -> log; symmetric_memory -> hook -> log, and so on."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import tracehook

HOUSE = Path(tracehook.__file__).parent
LEAVES = ("errors", "settings", "versions", "_core")  # of the top level, which every room may import
# What each room may import besides itself and the leaves. A leaf imports `log` at most.
MAY_IMPORT = {
    "log": (),
    "nccl": ("log",),
    "known": (),
    "audit": ("known", "log"),
    "views": ("audit", "log", "tuning"),
    "hook": ("known", "log", "nccl"),
    "tuning": ("agreement", "hook", "log", "nccl"),
    "policies": ("log", "nccl", "tuning"),
    "agreement": ("hook", "log"),
    "symmetric_memory": ("agreement", "hook", "log", "nccl", "policies"),
    "ipc": ("hook", "log"),
    "integrations": ("symmetric_memory", "hook", "log"),
    "metrics": ("hook", "log", "nccl"),
    "rehearsal": ("audit", "hook", "log"),
    "commands": ("views", "audit", "hook", "known", "log", "metrics", "nccl", "policies", "rehearsal", "tuning"),
}
# The same of C++, from the ground up: a room includes only rooms that stand above it in this table.
MAY_INCLUDE = {
    "events": (),
    "elf": (),
    "registrar": ("events",),
    "windows": ("events", "registrar"),
    "cuda": ("elf", "registrar"),
    "ipc": ("cuda", "elf", "events"),
    "nccl": ("cuda", "elf", "events", "registrar", "windows"),
    "torch": ("cuda", "elf", "events", "registrar", "windows"),
    "process": ("events", "nccl", "registrar", "torch", "windows"),
    "bindings": ("cuda", "events", "ipc", "nccl", "process", "registrar", "torch", "windows"),
}


def imports(file: Path) -> set[str]:
    """Return the modules of tracehook that a file imports, also in functions and for types, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tracehook":
            for alias in node.names:
                inside = HOUSE.joinpath(*node.module.split(".")[1:], alias.name)
                is_module = inside.is_dir() or inside.with_suffix(".py").exists()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "tracehook"}
    return found


def name_of(file: Path) -> str:
    """Return the dotted name of a module of this package."""
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(("tracehook", *(part for part in parts if part != "__init__")))


# Without the package's own file, the face of all rooms.
MODULES = {
    name_of(file): imports(file)
    for file in sorted(HOUSE.rglob("*.py"))
    if "cpp" not in file.parts and file != HOUSE / "__init__.py"
}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below(room: str) -> None:
    """Of the package itself a room may import its version, and the modules of the top level."""
    allowed = {room, *MAY_IMPORT[room], *LEAVES, ""}
    for name, imported in MODULES.items():
        if name.split(".")[1:2] == [room]:
            rooms = {".".join(other.split(".")[1:2]) for other in imported}
            assert rooms <= allowed, name


def test_every_folder_is_a_room() -> None:
    """A new folder needs a place in the table above."""
    assert {file.parent.name for file in HOUSE.glob("*/__init__.py")} == set(MAY_IMPORT)
    assert len(list(HOUSE.glob("*.py"))) <= 8


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Take away, again and again, what imports nothing that is left: nothing may be left in the end."""
    left = {name: {other for other in imported if other != name} for name, imported in MODULES.items()}
    while done := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in done:
            del left[name]
    assert not left


def test_no_two_classes_have_one_name() -> None:
    """A name stands for one thing in the whole package."""
    names = Counter(
        node.name
        for file in HOUSE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_long() -> None:
    """A module holds one noun, and no half of one: the longest fits under 500 lines, most under 130."""
    lengths = sorted(len(file.read_text().splitlines()) for file in HOUSE.rglob("*.py"))
    assert lengths[-1] < 500
    assert lengths[len(lengths) // 2] < 130


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_native_room_includes_only_what_lies_below(room: str) -> None:
    """`registrar` includes nothing of windows, and neither torch's room nor NCCL's."""
    rooms = list(MAY_INCLUDE)
    assert set(MAY_INCLUDE[room]) <= set(rooms[: rooms.index(room)])
    files = list((HOUSE / "cpp" / room).glob("*.[ch]*"))
    assert files
    for file in files:
        included = {match.partition("/")[0] for match in re.findall(r'#include "([^"]+)"', file.read_text())}
        assert included <= {room, *MAY_INCLUDE[room]}, file.name


def test_only_the_bindings_know_python() -> None:
    """The wiring of a process does without pybind11, like all rooms below it."""
    for room in MAY_INCLUDE.keys() - {"bindings"}:
        assert not [file for file in (HOUSE / "cpp" / room).glob("*.[ch]*") if "pybind11" in file.read_text()]


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_namespace_is_named_as_its_folder(room: str) -> None:
    """So the name of a thing says where it stands."""
    for file in (HOUSE / "cpp" / room).glob("*.[ch]*"):
        spaces = set(re.findall(r"^namespace (tracehook\S*)", file.read_text(), re.MULTILINE))
        assert spaces <= {f"tracehook::{room}"}, file.name


@pytest.mark.parametrize("file", sorted(HOUSE.rglob("*.py")), ids=lambda file: str(file.relative_to(HOUSE)))
def test_a_condition_is_not_entered_itself(file: Path) -> None:
    """Its lock is: Condition has lines of Python there, where a signal's handler may raise, and the lock would stay."""
    source = file.read_text()
    conditions = set(re.findall(r"(\S+) = threading\.Condition\(", source))
    assert not [name for name in conditions if f"with {name}:" in source]


@pytest.mark.parametrize("room", ["agreement", "hook", "ipc", "log", "metrics", "symmetric_memory"])
def test_a_room_of_a_job_takes_no_clock_of_time(room: str) -> None:
    """It takes those of log/clock.py: a program may replace those of `time`."""
    files = [file for file in (HOUSE / room).rglob("*.py") if file != HOUSE / "log" / "clock.py"]
    assert not [file.name for file in files if re.search(r"^(import time|from time) ?", file.read_text(), re.MULTILINE)]

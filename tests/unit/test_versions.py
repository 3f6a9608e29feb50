"""The one table of versions, and what follows from it."""

from importlib import metadata
from pathlib import Path

import pytest

import tracehook
from tracehook import versions
from tracehook.hook import library as hook_library
from tracehook.log.tables import rows as rows_of
from tracehook.rehearsal import emulation

TRAITS = [row[1:] for row in rows_of("nccl/traits.def")]
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    """A release needs no other place for its number."""
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    newest = next(line for line in text.splitlines() if line.startswith("## "))
    assert newest.startswith(f"## {tracehook.__version__} (")


def _dotted(nccl: int) -> str:
    return f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}"


@pytest.mark.parametrize(
    ("version", "row"),
    [
        ("2.11.0+cu130", "2.11"),
        ("2.14.1", "2.14"),
        ("2.15.0", "2.15"),
        ("2.16.0a0+git", "2.15"),
        ("2.9.1", "2.11"),
        ("3.0.0", "2.15"),
        ("strange", "2.11"),
    ],
)
def test_the_nearest_row(version: str, row: str) -> None:
    """A torch that is not in the table is taken to be like the nearest one."""
    assert versions.of_torch(version).torch == row


@pytest.mark.parametrize(
    ("version", "wanted", "group"),
    [
        ("2.11.0", "", "stock"),
        ("2.11.0", "1", "stock"),
        ("2.14.1", "", "stock"),
        ("2.14.1", "1", "nccl2"),
        ("2.15.0", "", "nccl2"),
        ("2.15.0", "0", "stock"),
        ("2.16.0", "1", "nccl2"),
    ],
)
def test_what_nccl_is(version: str, wanted: str, group: str) -> None:
    """The variable chooses where there is a choice."""
    assert versions.group_of(version, {"TORCH_DIST_USE_NCCL2": wanted} if wanted else {}) == group


def test_the_table_is_in_order() -> None:
    """Releases belong to their minors, which ascend; NCCL never goes back; each row is true of some NCCL."""
    rows = versions.ROWS
    assert all(hook_library.minor_of(row.release) == row.torch for row in rows)
    assert [row.nccl for row in rows] == sorted(row.nccl for row in rows)
    assert len({row.torch for row in rows}) == len(rows)
    assert all(end == "kAlways" or int(first) < int(end) for _, first, end, _ in TRAITS)
    (windows,) = (int(first) for name, first, _, _ in TRAITS if name == "kWindows")
    assert all(row.nccl >= windows for row in versions.ROWS)


def test_the_document_has_every_row() -> None:
    """docs/compatibility.md has a line for each, with the group that is torch's default."""
    lines = DOCUMENT.read_text().splitlines()
    for row in versions.ROWS:
        (line,) = (line for line in lines if line.startswith(f"| {row.torch} |"))
        assert row.group in line
        assert f"| {_dotted(row.nccl)} |" in line


def test_the_document_has_what_differs_in_nccl() -> None:
    """docs/compatibility.md has a line for each row of the native table, in its order, with its versions."""
    shown = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    lines = [[cell.strip("| ") for cell in cells[:3]] for cells in shown]
    rows = [
        [text, _dotted(int(first)), "" if end == "kAlways" else _dotted(int(end))] for _, first, end, text in TRAITS
    ]
    begin = lines.index(rows[0])
    assert lines[begin : begin + len(rows)] == rows


def test_a_rehearsal_has_the_nccl_of_the_installed_torch(tmp_path, monkeypatch) -> None:
    """Unless the environment names another, or there is no torch."""
    monkeypatch.setattr(emulation, "directory", lambda: tmp_path)
    monkeypatch.setattr(metadata, "version", lambda _: "2.15.0")
    name = "TRACEHOOK_EMU_NCCL_VERSION"
    assert emulation.environment(1, tmp_path, base={})[name] == "23007"
    assert emulation.environment(1, tmp_path, base={name: "22809"})[name] == "22809"

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    assert name not in emulation.environment(1, tmp_path, base={})


@pytest.mark.parametrize(
    ("version", "frees"), [("2.11.0+cu130", False), ("2.12.1", False), ("2.13.0", True), ("2.15.0", True)]
)
def test_which_torch_gives_memory_back_beside_pools(version: str, frees: bool) -> None:
    """From 2.13 on torch empties its cache also while a pool is begun on the device."""
    assert versions.frees_beside_pools(version) is frees

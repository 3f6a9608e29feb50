"""`make nccl-diff` says what the project does not know of a version of NCCL. Small headers stand for the wheels'."""

import shutil
from pathlib import Path

import pytest
import torch
from support import nccl_diff, nccl_header, nccl_known

HEADER = """
#define NCCL_MAJOR 2
#define NCCL_MINOR 27
#define NCCL_PATCH {patch}
#define NCCL_WIN_DEFAULT 0x00 /* known */
typedef enum {{ ncclSuccess = 0, ncclUnhandledCudaError, // counted on
  {values} }} ncclResult_t;
typedef struct ncclConfig_v22700 {{
  size_t size; unsigned int magic;
  unsigned int version; {members}
}} ncclConfig_t;
ncclResult_t  ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);
ncclResult_t  ncclCommInitAll(ncclComm_t* comm,
    {count} ndev, const int* devlist);
"""
OLD = HEADER.format(patch=7, values="ncclSystemError", members="int blocking;", count="int")
NEW = (
    HEADER.format(patch=8, values="ncclSystemError = 2, ncclWeird = 77", members="int blocking, idle;", count="size_t")
    + "#define NCCL_WIN_ODD 0x40\nncclResult_t ncclCommMelt(ncclComm_t comm, const void* sendbuff);\n"
    + "ncclResult_t ncclTeamOdd(int); int ncclNowhere(int odd);\n"
)
EXPORTS = ("ncclCommDestroy", "ncclCommInitAll")


def version(folder: Path, header: str, *exports: str) -> str:
    """Make what is left of a wheel after it was unpacked."""
    folder.mkdir()
    (folder / "nccl.h").write_text(header)
    (folder / "exports.txt").write_text("\n".join([*EXPORTS, *exports]))
    return str(folder)


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A version that has nothing of its own."""
    return version(tmp_path / "old", OLD)


@pytest.fixture
def new(tmp_path: Path) -> str:
    """A version with one new thing of every kind."""
    return version(tmp_path / "new", NEW, "ncclCommMelt", "ncclTeamOdd")


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Copies of the lists, which a test may change."""
    copies = (tmp_path / "exports.txt", tmp_path / "header.txt")
    for name, copy in zip(("EXPORTS", "HEADER"), copies, strict=True):
        shutil.copy(getattr(nccl_known, name), copy)
        monkeypatch.setattr(nccl_known, name, copy)
    return copies


def test_a_version_that_the_project_knows_is_no_failure(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Comments, line ends and NCCL's functions for profilers are no difference."""
    assert nccl_diff.main([old]) == 0
    assert capsys.readouterr().out == (
        "NCCL 2.27.7: 0 unknown to tracehook, of 2 exports and 11 facts of its headers\n"
    )


def test_what_is_new_is_named_with_the_place_of_its_answer(new: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions, arguments, members, values and macros; a function that nobody can link does not matter."""
    assert nccl_diff.main([new]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    said = dict(line.removeprefix("  UNKNOWN: ").split(": ", 1) for line in lines)
    assert said.keys() == {
        *("ncclCommMelt", "ncclTeamOdd", "ncclCommInitAll"),
        *("NCCL_WIN_ODD", "ncclResult_t.ncclWeird", "ncclConfig_t[4]"),
    }
    assert said["ncclCommMelt"].startswith(
        "ncclResult_t (ncclComm_t, const void*) -> neither in tracehook/cpp/nccl/calls"
    )
    assert said["ncclTeamOdd"] == "ncclResult_t (int) -> passed by: asks for numbers of ranks"
    assert "(ncclComm_t*, size_t, const int*), in place of ncclResult_t (ncclComm_t*, int," in said["ncclCommInitAll"]
    assert said["ncclCommInitAll"].endswith("calls.def has other arguments: Comm*, int, const int*")
    assert said["ncclResult_t.ncclWeird"].startswith("77 -> tracehook/cpp/nccl/abi.h (Result)")
    assert said["ncclConfig_t[4]"].startswith("int idle, in place of int cgaClusterSize -> tracehook/cpp/nccl/abi.h")
    assert last == "NCCL 2.27.8: 6 unknown to tracehook, of 4 exports and 16 facts of its headers"


def test_an_older_version_shows_what_changed_since(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Known or not: whoever follows a new NCCL reads all of it."""
    assert nccl_diff.main([old, "--since", new]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  since 2.27.8, gone: ncclCommMelt" in lines
    (changed,) = (line for line in lines if "ncclCommInitAll" in line)
    assert changed == (
        "  since 2.27.8: ncclCommInitAll: ncclResult_t (ncclComm_t*, int, const int*), "
        "in place of ncclResult_t (ncclComm_t*, size_t, const int*) -> interposed"
    )


def test_what_was_recorded_is_known_from_then_on(new: str, lists: tuple[Path, Path]) -> None:
    """The lists stay in the order of versions."""
    assert nccl_diff.main([new, "--record"]) == 1
    assert nccl_diff.main([new]) == 0
    for file in lists:
        versions = [line.replace(":", " ").split()[0] for line in file.read_text().splitlines()[1:]]
        assert "2.27.8" in versions
        assert versions == sorted(versions, key=nccl_known.order)


@pytest.mark.usefixtures("lists")
def test_a_newer_version_lacks_what_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What no header says has to be looked at, too: one line for each file that has such facts."""
    given = version(tmp_path / "newer", OLD.replace("MAJOR 2", "MAJOR 9"))
    assert nccl_diff.main([given, "--record"]) == 1
    said = capsys.readouterr().out
    assert "UNKNOWN: NCCL_WIN_COLL_SYMMETRIC: gone, in place of 0x01 -> tracehook/cpp/nccl/window_guard.h" in said
    assert "Nobody has held tracehook/cpp/nccl/traits.def against a version after" in said
    assert "Nobody has held tracehook/nccl/rules.py against a version after" in said
    assert nccl_diff.main([given]) == 0


def test_a_version_that_pip_does_not_find_is_another_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody shall take it for one that has unknown things."""
    monkeypatch.setattr(nccl_diff, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit) as ended:
        nccl_diff.main(["0.0.1"])
    assert ended.value.code == nccl_diff.NO_WHEEL


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch brings no NCCL")
def test_the_header_of_the_nccl_that_is_here_is_known() -> None:
    """A new version of torch makes this fail: `make nccl-diff NCCL=... RECORD=yes` then says what is new."""
    folder = Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "include"
    known = {pair for facts in nccl_known.facts().values() for pair in facts.items()}
    exports = set().union(*nccl_known.exports().values())
    here = nccl_header.facts(folder).items()
    assert len(here) > 100
    unknown = {(name, text) for name, text in here if (name, text) not in known}
    assert {name for name, text in unknown if name in exports or not text.endswith(")")} == set()

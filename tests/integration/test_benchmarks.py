"""The benchmarks, as far as a machine without devices can tell: what they load is built, and one of them measures."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.rehearsal import ROOT, rehearse

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Yield the module that compiles what benchmarks load, into a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        native = importlib.import_module("native")
        patch.setattr(native, "BUILD", tmp_path_factory.mktemp("benchmarks"))
        yield native
        del sys.modules["native"]


@pytest.fixture(scope="module")
def hot_path(build: ModuleType) -> Path:
    """Return the library that times allocations, compiled once: torch's headers take a while."""
    return Path(build.hot_path())


@pytest.mark.parametrize("kind", ["bare", "hook", "group", "group+hook"])
def test_an_allocation_is_timed(hot_path: Path, kind: str) -> None:
    """A pair of allocation and free is timed with a tracker, with our hook, and beside torch's own process group."""
    run = rehearse(FOLDER / "hot_path.py", kind, str(hot_path), env={"TORCH_DIST_USE_NCCL2": "1"})
    run.assert_good()
    assert 1 < float(run.finished.out.split("RESULT ")[1].split()[0]) < 1e6


@pytest.mark.parametrize("name", ["caller", "journal", "placement", "peer_segments"])
def test_libraries_of_benchmarks_are_built(build: ModuleType, name: str) -> None:
    """What a benchmark loads is compiled with g++ and the installed packages alone."""
    assert getattr(build, name)().exists()

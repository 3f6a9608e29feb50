"""Kernels that a program compiles while it runs, by Triton or torch.compile: the job runs, and a line tells of them."""

import re
from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

from tracehook.rehearsal import emulation

pytestmark = pytest.mark.timeout(420)  # a busy machine compiles for minutes
TOLD = re.compile(
    r"rehearsal: (?:rank (\d+): )?(\d+) kernels? of Triton, another compiler or an extension \((?:the first: )?(\w+)\) "
    r"(?:was|were) launched (\d+) times? and computed nothing: (?:its|their) results are not what a device gives"
)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables of a cache that is empty at first."""
    folder = tmp_path_factory.mktemp("caches")
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def run(case: str, caches: dict[str, str], ranks: int = 0) -> tuple[Rehearsal, list[tuple[str, ...]]]:
    """Run one function of the job; it ends well. Return also what each process said of its kernels."""
    found = rehearse("compiled_kernels.py", case, ranks=ranks, env=caches, timeout=360).assert_good()
    return found, sorted(match.groups(default="") for match in TOLD.finditer(found.finished.err))


def test_a_kernel_of_triton_does_nothing_and_says_so(caches: dict[str, str]) -> None:
    """It is counted as often as a device would run it, also by a graph; Triton compiles for the emulated device."""
    found, told = run("by_hand", caches)
    facts = found.facts()
    assert told == [("", "1", "add_one", "8")], found.output  # five launches, and a graph that was launched three times
    assert facts["values"] == [0.0]
    assert facts["target"] == ["cuda", 90, 32]
    assert facts["capability"] == [9, 0]
    assert facts["of_triton"] == facts["of_torch"]
    assert facts["refused"] == "Triton Error [CUDA]: invalid argument"  # a grid that no device has


def test_an_autotuner_and_other_compilers(caches: dict[str, str]) -> None:
    """Kernels take more than no time, so an autotuner chooses; tensor descriptors and NVRTC's kernels are taken too."""
    found, told = run("by_others", caches)
    times = found.facts()["times"]
    assert len(times) == 2
    assert times[0] > 0
    assert [one[:3] for one in told] == [("", "3", "tuned")], found.output
    assert found.facts()["bessel"] == [1.0, 1.0]


def test_compiled_models(caches: dict[str, str]) -> None:
    """torch.compile trains a model with kernels of its worker processes, also in CUDA graphs, and more of its kinds."""
    found, told = run("models", caches)
    facts = found.facts()
    assert facts["workers"]
    assert facts["graphs"]
    assert facts["skipped"] == 0
    assert facts["attention"] == [1, 2, 128, 16]
    assert facts["product"] == [64, 64]
    assert len(told) == 1, found.output  # the workers launch nothing
    assert int(told[0][1]) > 5
    assert int(told[0][3]) > 50


def test_compiled_models_of_two_ranks(caches: dict[str, str]) -> None:
    """Each rank compiles, under DDP and under FSDP2, and each says what it launched."""
    found, told = run("ranks", caches, ranks=2)
    assert found.facts(0)["frames"]
    assert [one[0] for one in told] == ["0", "1"], found.output
    assert all(int(one[3]) > 10 for one in told)


def test_the_caches_of_rehearsals_are_apart(tmp_path: Path) -> None:
    """What an autotuner chose in a rehearsal is never found by a job on devices, whose caches a user may have named."""
    named = {"TRITON_CACHE_DIR": "/given/triton", "TORCHINDUCTOR_CACHE_DIR": "/given/inductor"}
    once = emulation.environment(1, tmp_path, base=named)
    for name, given in named.items():
        assert once[name] == f"{given}/rehearsal"
        assert emulation.environment(1, tmp_path, base=once)[name] == once[name]
    assert once["TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE"] == "0"
    assert once["TRITON_LIBCUDA_PATH"] == str(emulation.directory())


def test_a_cache_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the user's own folder of caches, and in a temporary one where that cannot be written."""
    name, base = "TORCHINDUCTOR_CACHE_DIR", {"HOME": str(tmp_path)}
    assert emulation.environment(1, tmp_path, base=base)[name] == f"{tmp_path}/.cache/tracehook/inductor/rehearsal"
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/temporary")
    assert emulation.environment(1, tmp_path, base=base)[name].startswith("/temporary/tracehook-")

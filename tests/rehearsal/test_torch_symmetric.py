"""torch's own symmetric memory in a rehearsal: what docs/registration.md says of it is so, with torch 2.11."""

from importlib import metadata
from pathlib import Path

import pytest
from support.rehearsal import rehearse

pytestmark = pytest.mark.skipif(
    not metadata.version("torch").startswith("2.11."), reason="docs/registration.md speaks of torch 2.11"
)


def test_rendezvous_compares_sizes_alone(tmp_path: Path) -> None:
    """With backend CUDA: two tensors in opposite order pass, unequal sizes do not, and the backend stays."""
    run = rehearse("torch_symmetric.py", "CUDA", "swapped", "backend", "uneven", log=tmp_path, ranks=2).assert_good()
    for facts in run.told:
        assert facts["swapped"] == ""
        assert "Backend can not be changed after use" in facts["backend"]
        assert "Expected reqs[r].block_size == reqs[0].block_size" in facts["uneven"]


@pytest.mark.parametrize("backend", ["CUDA", "NCCL"])
def test_a_rendezvous_of_tracehook_compares_what_the_ranks_bring(tmp_path: Path, backend: str) -> None:
    """A tensor of another name, shape or place is refused on all ranks, and torch is not called."""
    run = rehearse("torch_symmetric.py", backend, "alike", "names", "shapes", "place", log=tmp_path, ranks=2)
    # torch ends its device communicator after the communicator, which a rehearsal names.
    assert run.broken == (["C5"] if backend == "NCCL" else []), run.output
    assert ("ncclDevCommDestroy after ncclCommDestroy" in run.finished.err) == (backend == "NCCL")
    for facts in run.told:
        assert facts["alike"] == ""
        for what, difference in {
            "names": "rank 0 wants \"tensor 'a'\"; rank 1 wants \"tensor 'b'\"",
            "shapes": "rank 0 wants 'shape [1048576] of float32'; rank 1 wants 'shape [2, 524288] of float32'",
            "place": "rank 1 wants 'shape [1048575] of float32'",
        }.items():
            assert facts[what].startswith("RegistrationMismatch: ")
            assert "the ranks differ at 'rendezvous'" in facts[what]
            assert difference in facts[what]


def test_a_rank_that_skips_a_rendezvous_is_named(tmp_path: Path) -> None:
    """The other one hears its name within the time-out, and not after torch's minutes at the store."""
    run = rehearse(
        "torch_symmetric.py", "CUDA", "late", log=tmp_path, ranks=2, env={"SYMM_REGISTER_TIMEOUT": "3"}, timeout=60
    )
    assert "rank 1" in run.facts(0)["late"], run.output


@pytest.mark.parametrize("env", [{"SYMM_REGISTER_GUARD": "off"}, {"SYMM_REGISTER_HOOK": "0"}])
def test_a_rendezvous_without_the_guard_is_that_of_torch(tmp_path: Path, env: dict[str, str]) -> None:
    """Nothing is compared, and nothing is refused."""
    log = None if "SYMM_REGISTER_HOOK" in env else tmp_path
    run = rehearse("torch_symmetric.py", "CUDA", "alike", "shapes", log=log, ranks=2, env=env).assert_good()
    assert [run.facts(rank)[what] for rank in (0, 1) for what in ("alike", "shapes")] == [""] * 4

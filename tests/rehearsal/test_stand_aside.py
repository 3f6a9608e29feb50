"""Where the hook cannot work it says so once, with advice, registers nothing harmful, and the job runs on."""

from pathlib import Path

import pytest
from support.audits import FINDINGS, Audit
from support.rehearsal import Rehearsal, rehearse

from tracehook.log.tables import REASONS, number_of

TORCH_HOOK = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}


def _assert_noted_once(run: Rehearsal, reason: str) -> None:
    row = REASONS[number_of(reason)]
    noted = list(run.events("hook.unsupported") + run.events("hook.conflict"))
    assert [(e["event"], e["reason"], e["advice"]) for e in noted] == [(row.event, row.name, row.advice)]
    assert len(run.finished.lines(f"tracehook: {row.event}:")) == 1, run.output
    assert run.facts()["status"]["reasons"] == {row.name: row.advice}


def test_torch_hook_on(tmp_path: Path) -> None:
    """With torch's own hook on as well, tracehook records what that registers, registers nothing, and says so once."""
    run = rehearse("plain.py", log=tmp_path, env=TORCH_HOOK)
    # Both are torch's. Its hook leaves registrations on a communicator that it finalizes (C4). It does not wait for
    # collectives that use what it deregisters (L5), which may have ended by then.
    assert run.broken in (["C4"], ["C4", "L5"]), run.output
    _assert_noted_once(run, "torch_hook")
    facts = run.facts()
    assert facts["end"] == "reached"
    assert facts["sum"] == 1.0
    assert facts["status"]["state"] == facts["state_then"] == "recording"
    made = run.events("register.local")
    assert all(event["observed"] for event in made)
    assert len(made) == facts["registered"] > 0, "torch's own"
    Audit(tmp_path).expect(FINDINGS, "hook-stands-aside", "retired-while-registered")
    assert len(run.events("segment.alloc")) == 3
    assert len(run.events("communicator.pending")) == 2


def test_torch_hook_on_and_ours_asked_for(tmp_path: Path) -> None:
    """Who asks for tracehook's own registrations gets them beside those of torch's hook; NCCL counts both."""
    ours = {"SYMM_REGISTER_LOCAL": "own", "SYMM_REGISTER_MEMORY": "vmm"}
    new = {"TRACEHOOK_EMU_NCCL_VERSION": "23007"}  # with an older one torch's hook breaks rule L9
    run = rehearse("registered_calls.py", ranks=2, log=tmp_path, env=TORCH_HOOK | ours | new)
    assert run.broken == ["C4"], run.output
    for rank, facts in enumerate(run.told):
        assert facts["status"]["state"] == "on"
        made = run.events("register.local", rank)
        assert not any(event.get("observed") for event in made)
        assert facts["held"] > len(made) > 0


def test_stream_ordered_allocator(tmp_path: Path) -> None:
    """The cudaMallocAsync backend is recognised as soon as CUDA comes up, and the job computes what it should."""
    run = rehearse("plain.py", log=tmp_path, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert len(run.events("hook.unsupported")) <= 1
    assert len(run.finished.lines("tracehook: hook.unsupported: the current CUDA allocator")) == 1, run.output
    if "operation not supported by the emulated runtime" in run.finished.err:
        pytest.skip("recognised; the job cannot run on, as the emulated runtime has no stream-ordered memory")
    run.assert_good()
    _assert_noted_once(run, "foreign_allocator")


def test_an_allocator_that_caches_nothing(tmp_path: Path) -> None:
    """It is recognised, and the job computes what it should. Expandable segments: test_holes_of_torch.py."""
    run = rehearse("plain.py", log=tmp_path, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}).assert_good()
    facts = run.facts()
    assert facts["end"] == "reached"
    assert facts["sum"] == 1.0
    assert facts["status"]["state"] == facts["state_then"] == "unsupported"
    assert facts["registered"] == 0
    assert run.events("register.local") == []
    _assert_noted_once(run, "no_caching")


def test_own_hook_and_expandable_segments(tmp_path: Path) -> None:
    """Two reasons at once are both said, once each."""
    env = TORCH_HOOK | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    run = rehearse("plain.py", log=tmp_path, env=env).assert_good()
    assert sorted(run.facts()["status"]["reasons"]) == ["expandable_segments", "torch_hook"]
    assert len(run.finished.lines("tracehook: hook.")) == 2, run.output

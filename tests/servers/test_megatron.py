"""Megatron's own modules with tracehook's memory under their functions (docs/integrations.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import Rehearsal, rehearse

from servers.test_servers import FETCHED, HERE

pytestmark = pytest.mark.skipif(
    not (FETCHED / "megatron" / "core" / "distributed").exists(),
    reason="Megatron's modules are not here: make integrations",
)


def play(log: Path, case: str) -> Rehearsal:
    """Play one case on two ranks."""
    env = {"FETCHED": str(FETCHED), "SYMM_REGISTER_TIMEOUT": "5", "TRACEHOOK_EMU_NCCL_VERSION": "23007"}
    env["SYMM_REGISTER_INTEGRATIONS"] = "megatron"
    return rehearse(HERE / "megatron_job.py", case, log=log, ranks=2, env=env, timeout=120)


def test_its_buffers_are_in_windows_of_tracehook(tmp_path: Path) -> None:
    """Gradients are reduced and parameters gathered in windows that are not others'; the audit finds nothing."""
    run = play(tmp_path, "buffers")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["symmetric"] == [True, True], run.output
        assert (facts["reduced"], facts["gathered"], facts["compiled"]) == (3.0, [5.0, 6.0], [])
        assert not any("observed" in event for event in run.events("register.window", rank))
        assert run.events("register.window", rank) != []
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text
    assert len(run.finished.lines("megatron: tracehook makes its symmetric memory")) == 2, run.output


def test_a_pool_is_registered_with_several_groups(tmp_path: Path) -> None:
    """At the end of the context, or later by register_mem_pool; a second time registers nothing."""
    run = play(tmp_path, "several_groups")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["seen"] == {"unregistered": [False] * 4, "registered": [True] * 6}, run.output
        assert facts["sums"] == [3.0] * 6
        assert (facts["disabled"], facts["compiled"]) == (False, [])
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


def test_a_sharded_model_takes_a_step(tmp_path: Path) -> None:
    """Megatron-FSDP's double buffers are in windows, which are made once, and the audit finds nothing."""
    run = play(tmp_path, "sharded")
    run.assert_good()
    for rank in (0, 1):
        assert (run.facts(rank)["windows"], run.facts(rank)["compiled"]) == ([2], []), run.output
        assert ["observed" in event for event in run.events("register.window", rank)] == [False] * 2
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


def test_a_sharded_model_registers_later(tmp_path: Path) -> None:
    """Its buffers get their windows when Megatron-FSDP's own function for that is called, after the first step."""
    run = play(tmp_path, "sharded_later")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["windows"], facts["registered"], facts["compiled"]) == ([], [2], []), run.output
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


def test_buffers_of_other_sizes_raise_on_every_rank(tmp_path: Path) -> None:
    """Both ranks hear both sizes, and nothing was registered."""
    run = play(tmp_path, "unequal")
    run.assert_good()
    raised = [run.facts(rank)["raised"] for rank in (0, 1)]
    assert raised[0] == raised[1]
    assert raised[0].startswith("RegistrationMismatch")
    assert run.events("register.window") == []

"""Scopes of symmetric memory on communicators that torch did not make."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse

FORMS = ("int", "c_void_p", "object", "sglang", "vllm")


def play(tmp_path: Path, case: str) -> Rehearsal:
    """Play one case on two ranks."""
    run = rehearse("scopes_of_others.py", case, log=tmp_path, ranks=2, env={"SYMM_REGISTER_TIMEOUT": "30"})
    run.assert_good()
    return run


@pytest.mark.parametrize("case", ["forms", "no_store"])
def test_a_scope_takes_every_form_of_a_communicator(tmp_path: Path, case: str) -> None:
    """A handle, an object with it, a coordinator of SGLang or vLLM; the ranks meet at whatever store there is."""
    run = play(tmp_path, case)
    for rank, facts in enumerate(run.told):
        assert facts["raised"] == "", run.output
        assert facts["sums"] == dict.fromkeys(FORMS, 3.0)
        assert facts["symmetric"] == [True] * len(FORMS)
        assert (facts["why"], facts["ordinary"], facts["synced"]) == ("symmetric", "not_in_pool", 0)
        ((key, windows),) = facts["windows"]
        assert (len(key), windows) == (16, len(FORMS))
        assert facts["trimmed"] == len(FORMS) * (16 << 20)
        assert len(run.events("register.window", rank)) == len(FORMS)
        if case == "no_store":
            assert "have no store to agree at" in facts["refused"]
    Audit(tmp_path).expect(CLEAN)


def test_a_scope_is_made_anew_after_disable(tmp_path: Path) -> None:
    """What disable() ended is not used again, and a new scope registers as before."""
    run = play(tmp_path, "switched")
    for rank in (0, 1):
        assert (run.facts(rank)["made_anew"], run.facts(rank)["windows"]) == (True, 1), run.output


def test_what_is_no_communicator_is_refused_with_one_line(tmp_path: Path) -> None:
    """The line says what was given, what is expected, and what to do."""
    facts = play(tmp_path, "bad").facts(0)
    assert facts["text"].startswith("TypeError: tracehook: str is no communicator: expected an ncclComm_t")
    assert facts["none"] == "ValueError: tracehook: c_void_p has no NCCL communicator: make the communicator before"
    assert facts["later"].startswith("ValueError: tracehook: SimpleNamespace has no NCCL communicator")
    assert facts["unknown"].startswith("RuntimeError: tracehook does not know communicator 0x1000: ")
    assert facts["both"] == "ValueError: tracehook: a group and a communicator were given: give one of them"
    assert facts["ended"].startswith("RuntimeError: tracehook does not know communicator 0x")
    assert "has ended" in facts["entered"]


def test_what_is_reserved_at_the_start_serves_without_registering(tmp_path: Path) -> None:
    """Scopes whose tensors fit make no window, large tensors and small ones alike."""
    run = play(tmp_path, "reserved")
    for facts in run.told:
        assert facts["raised"] == "", run.output
        assert (facts["sum"], facts["symmetric"]) == (3.0, True)
        assert facts["before"] == facts["after"] > 0
        assert facts["negative"].startswith("ValueError: tracehook.reserve: expected bytes, got -1")

"""Frameworks that have NCCL's memory registered by torch: known, and clean."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse

LAYERS, STEPS = 2, 3


@pytest.fixture(scope="module")
def alone() -> Rehearsal:
    """Return the job of FSDP2 without tracehook."""
    return rehearse("fsdp2.py", ranks=2)


def test_fsdp2_with_memory_of_the_group(tmp_path: Path, alone: Rehearsal) -> None:
    """Its buffers are registered, and in the log; what torch does beside is what it does without tracehook."""
    run = rehearse("fsdp2.py", log=tmp_path, ranks=2, env={"SYMM_REGISTER_SEGMENTS": "own-allocators"})
    # torch ends its communicator before the registrations of its own pool, with or without us.
    assert (run.status, run.broken) == (alone.status, alone.broken), run.output
    for rank in (0, 1):
        facts, plain = run.facts(rank), alone.facts(rank)
        assert (facts["supported"], facts["sum"], facts["left"]) == (True, 3.0, []), run.output
        assert facts["collectives"] == [2 * LAYERS * STEPS, LAYERS * STEPS]
        assert facts["known"] == [[rank, 2, facts["segments"]]]
        made = run.events("register.local", rank)
        assert any(event["addr"] == hex(facts["staged"]) for event in made)
        assert plain["registrations"] > 0, "torch registers its pool"
        assert facts["registrations"] == plain["registrations"] + len(made)
        assert len(run.events("deregister.local", rank)) == len(made)
    Audit(tmp_path).expect(CLEAN)

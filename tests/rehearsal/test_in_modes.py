"""Scopes and questions inside of what a program has put around torch's functions."""

from pathlib import Path

from support.audits import CLEAN, Audit
from support.rehearsal import rehearse

NOWHERE = [False, "not_in_pool"]


def test_a_scope_is_not_seen_by_modes_of_the_program(tmp_path: Path) -> None:
    """The first scope has torch make the communicator, and reserve allocates: no mode sees a call of these."""
    run = rehearse("in_modes.py", ranks=2, log=tmp_path).assert_good()
    for facts in run.told:
        assert facts["seen"].pop("traced") == ["aten.mul.Tensor"]
        assert not any(facts["seen"].values()), facts
        assert facts["sums"] == dict.fromkeys(facts["sums"], 3 * 1024.0)
        assert facts["asked"] == dict.fromkeys(facts["asked"], NOWHERE), facts
        assert facts["windows"] == sorted(set(facts["windows"])), "each has one more"
    assert len(run.facts(0)["asked"]) == 6
    Audit(tmp_path).expect(CLEAN)

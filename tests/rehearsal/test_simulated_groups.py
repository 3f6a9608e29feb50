"""Groups that NCCL only simulates (`torch.distributed._time_estimator`): they end, and nothing of them stays."""

from __future__ import annotations

from pathlib import Path

from support.rehearsal import rehearse

from tracehook.audit.summary import summarise


def test_communicators_after_a_simulated_group_are_registered(tmp_path: Path) -> None:
    """A simulation ends its group: a communicator made later is found, and gets every segment."""
    run = rehearse("simulated.py", ranks=2, log=tmp_path)
    run.assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["held"] == [1, 1]
        counts = summarise(run.log(rank))
        assert (counts.communicators, counts.local.left, counts.warnings) == (2, 0, 0)

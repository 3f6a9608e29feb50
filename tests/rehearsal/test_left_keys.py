"""What stays in the store of groups that are gone does not depend on the number of their ranks, and is listed."""

from __future__ import annotations

import pytest
from support.rehearsal import rehearse

GROUPS = 4
# Of each group, whatever its ranks: somebody may still come for the last verdicts.
STAYS = sorted(["*/placement/1/1/verdict", "*/windows/1/2/verdict"] * GROUPS)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_group_leaves_two_keys(ranks: int) -> None:
    """A second after a group has ended, its rounds, its counters and its samples are gone."""
    run = rehearse("left_keys.py", "2", ranks=ranks, env={"SYMM_REGISTER_HOOK": "1"}, timeout=120)
    run.assert_good()
    for rank in range(ranks):
        assert run.facts(rank)["left"] == STAYS, run.output

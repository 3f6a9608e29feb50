"""Communicators that share resources inside NCCL: one thread at a time is in a call on any of them."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse

SECONDS = 3
SLOW = f"ncclAllGather:slow@1={SECONDS}s"


@pytest.mark.parametrize("child", ["split", "shrink"])
def test_a_child_that_shares_resources_waits_for_its_parent(tmp_path: Path, child: str) -> None:
    """NCCL's variable says that they share; a call on the child waits until the parent's has returned."""
    env = {f"NCCL_COMM_{child.upper()}_SHARE_RESOURCES": "1"}
    run = rehearse("shared_resources.py", child, log=tmp_path, ranks=2, faults=SLOW, env=env).assert_good()
    assert run.facts()["seconds"] >= SECONDS

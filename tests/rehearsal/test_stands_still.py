"""While NCCL hangs, the interpreter goes on."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse

HANG = 15  # seconds; all acts together take two


@pytest.mark.parametrize(("what", "call"), [("free", "ncclAllReduce:slow@1"), ("allocate", "ncclMemAlloc:slow@2")])
def test_no_call_stops_the_interpreter_while_nccl_hangs(tmp_path: Path, what: str, call: str) -> None:
    """A thread that waits for NCCL in the allocator holds its lock; no call of ours waits for it with the GIL."""
    env, faults = {"SYMM_REGISTER_CHECK": "1", "SYMM_REGISTER_TIMEOUT": "30"}, f"{call}={HANG}s"
    run = rehearse("stands_still.py", what, str(HANG), log=tmp_path, faults=faults, env=env, timeout=90).assert_good()
    facts = run.facts()
    assert [name for name, hangs in facts["hangs"].items() if not hangs] == [], "the hang was over after these"
    assert facts["status_waits"] is False
    assert (facts["alive"], facts["state"]) == ([], "on")

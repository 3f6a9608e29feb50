"""Jobs of four ranks run well on every version of NCCL that the emulation plays."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import EXAMPLES, rehearse

# At least one of each minor version, and both sides of what changed within one (tracehook/cpp/nccl/traits.def).
VERSIONS = ("2.27.7", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.7", "2.31.2", "2.32.3")
RANKS = 4


def number(version: str) -> str:
    """Return a version as NCCL says it: 22809 for 2.28.9."""
    major, minor, patch = map(int, version.split("."))
    return str(10000 * major + 100 * minor + patch)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("job", ["tour.py", "symmetric_tp.py"])
def test_a_job_of_four_ranks(tmp_path: Path, job: str, version: str) -> None:
    """The tour registers, splits, captures and aborts; the other one has a scope, whose memory is in a window."""
    env = {"TRACEHOOK_EMU_NCCL_VERSION": number(version)}
    ran = rehearse(EXAMPLES / job, log=tmp_path, ranks=RANKS, torchrun=True, env=env, timeout=150)
    ran.assert_good()
    Audit(tmp_path).expect(CLEAN)
    assert len(ran.logs) == RANKS
    if job == "symmetric_tp.py":
        assert [len(ran.events("register.window", rank)) for rank in range(RANKS)] == [1] * RANKS

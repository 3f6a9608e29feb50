"""A device that runs one kernel without end: its rank is named, though its program made the calls that others made."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.audits import Audit
from support.rehearsal import read_logs, rehearse_until, write_job

RANKS = 3
# Some ranks have a kernel that never ends, before their second call, and calls behind it. Nobody looks at a result.
JOB = """
import os, sys
import torch, torch.distributed as dist
from common import RANK, start

tensor = torch.ones(4, device=start())
dist.all_reduce(tensor)
torch.cuda.synchronize()
open(f"{os.path.dirname(os.environ['TEST_STORE'])}/started {RANK}", "w").close()
if RANK in map(int, sys.argv[3:]):
    torch.cuda._sleep(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def played(folder: Path, cycles: int, calls: int, *kernels: int) -> dict[str, Any]:
    """Return what the audit says of the job. `kernels`: the ranks that have one; rank 1 if none is named."""
    job, log = write_job(folder / "job.py", JOB), folder / "log"
    found = rehearse_until(
        8, job, str(cycles), str(calls), *map(str, kernels or (1,)), ranks=RANKS, log=log, timeout=90
    )
    assert len(read_logs(log)) == RANKS, found.output
    return dict(json.loads(Audit(log, "--json").out))


@pytest.mark.timeout(150)
def test_the_rank_whose_device_does_not_go_on_is_named(tmp_path: Path) -> None:
    """With the call that it made and did not come to."""
    first = played(tmp_path, 1 << 62, 200)["first_finding"]
    assert (first["rule"], first["ranks"]) == ("rank-missing", [1, 0, 2]), first
    assert "rank 1 made its 2nd call of group 0" in first["message"], first
    assert "but its device has not come to it" in first["message"], first


@pytest.mark.timeout(150)
def test_no_rank_is_named_alone_if_calls_are_too_many_to_know(tmp_path: Path) -> None:
    """The log remembers 256 of each communicator."""
    first = played(tmp_path, 1 << 62, 300)["first_finding"]
    assert (first["rule"], first["ranks"]) == ("rank-missing", [0, 1, 2]), first
    assert first["message"].startswith("the devices of ranks 0, 1 and 2 stand behind calls"), first
    assert "too many to know where" in first["message"], first
    assert "cannot tell which of them is wrong" in first["message"], first


@pytest.mark.timeout(150)
def test_a_kernel_without_end_on_all_ranks_is_told(tmp_path: Path) -> None:
    """Then no rank waits for another one."""
    first = played(tmp_path, 1 << 62, 5, *range(RANKS))["first_finding"]
    assert (first["rule"], first["ranks"]) == ("rank-missing", [0, 1, 2]), first
    assert "ranks 0, 1 and 2 made the 2nd call of group 0" in first["message"], first
    assert "their devices have not come to it" in first["message"], first


@pytest.mark.timeout(150)
def test_a_kernel_that_ends_is_no_finding(tmp_path: Path) -> None:
    """Kernels take no time in a rehearsal, but those that a device would run for hours."""
    assert played(tmp_path, 1 << 30, 5)["clean"]

"""A pipeline of torch whose stages do not all end at the same step: no stage that goes on is named first."""

import json
from pathlib import Path

import pytest
from support.audits import Audit
from support.rehearsal import read_logs, rehearse_until, write_job

STAGES, LAST = 4, 3
# The last stage leaves its loop before the others do, and goes on to where all meet.
JOB = """
import os
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from common import RANK, start

device = start()
torch.manual_seed(0)
stage = PipelineStage(torch.nn.Linear(64, 64).to(device), RANK, 4, device)
schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
batch = torch.ones(16, 64, device=device)
open(f"{os.path.dirname(os.environ['TEST_STORE'])}/started {RANK}", "w").close()
for step in range(6):
    if step == 4 and RANK == 3:
        break
    if RANK == 0:
        schedule.step(batch)
    elif RANK == 3:
        schedule.step(target=batch, losses=[])
    else:
        schedule.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.timeout(150)
def test_a_stage_that_goes_on_is_not_named_for_the_one_that_left(tmp_path: Path) -> None:
    """What a schedule does in each step is no departure from what it did before."""
    job, log = write_job(tmp_path / "job.py", JOB), tmp_path / "log"
    run = rehearse_until(10, job, ranks=STAGES, log=log, timeout=90)
    assert len(read_logs(log)) == STAGES, run.output
    first = json.loads(Audit(log, "--json").out)["first_finding"]
    assert first["rule"] == "rank-missing", first
    assert first["ranks"][0] == LAST or (LAST in first["ranks"] and "cannot tell" in first["message"]), first

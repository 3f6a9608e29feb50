"""The pools of symmetric memory: their limit, and the policies that choose between them."""

from pathlib import Path

import pytest
from support.packages import install_policy, with_packages
from support.rehearsal import JOBS, rehearse, write_job
from support.symmetric import alike, play

MB = 1 << 20
JOB = "symmetric_failures.py"


def test_limit_of_the_pools(tmp_path: Path) -> None:
    """Beyond SYMM_REGISTER_POOL_LIMIT a PoolLimitError has numbers and owners, and the program goes on."""
    run = play(JOB, "limit", "works", log=tmp_path, SYMM_REGISTER_POOL_LIMIT="100MiB").assert_good()
    assert alike(run, "bases")[:2] == ["PoolLimitError", "OutOfMemoryError"]
    for rank in (0, 1):
        text, cause = run.facts(rank)["texts"]
        limit = "SYMM_REGISTER_POOL_LIMIT=104857600 (100 MiB)"
        for part in ("64 MiB more", limit, "hold 96 MiB", "0 64 MiB", "1 32 MiB"):
            assert part in text
        assert cause == "OutOfMemoryError"
    assert alike(run, "held") == 96 * MB
    assert (alike(run, "sums"), alike(run, "outside")) == ([3.0, 3.0], 3.0)
    assert alike(run, "given_back") == 96 * MB, "trim makes room"
    assert alike(run, "after") == [3.0, None]
    assert [(event["wanted"], event["held"]) for event in run.events("pool.limit")] == [(64 * MB, 96 * MB)] * 2


def test_limit_that_the_program_catches_inside(tmp_path: Path) -> None:
    """A program that catches torch.OutOfMemoryError inside the scope and takes less has a symmetric tensor."""
    run = play(JOB, "limit_caught_inside", "works", log=tmp_path, SYMM_REGISTER_POOL_LIMIT="100MiB").assert_good()
    assert (alike(run, "sizes"), alike(run, "symmetric"), alike(run, "sum")) == ([0, 32], True, 3.0)


NO_BROADCAST = '''
from tracehook.policies import Answer

def choose(request):
    """Ordinary memory for broadcasts."""
    return Answer.NONE if request.operation == "broadcast" else None
'''


@pytest.mark.parametrize(
    ("policy", "pools", "hinted"),
    [
        ("shared", ["shared"], True),
        ("isolated", ["group 0", "group 1", "sets"], True),
        ("no-broadcast,isolated", ["group 0", "group 1", "sets"], False),
    ],
)
def test_policies_choose_the_pools(tmp_path: Path, policy: str, pools: list[str], hinted: bool) -> None:
    """One pool for all groups, one for each set of groups, or ordinary memory where a policy answers none."""
    install_policy(tmp_path / "site", "no-broadcast", NO_BROADCAST)
    job = with_packages(tmp_path / "site", JOBS / JOB)
    run = play(job, "policy", "works", log=tmp_path / "log", SYMM_REGISTER_POLICY=policy).assert_good()
    assert alike(run, "pools") == pools
    assert (alike(run, "symmetric"), alike(run, "both"), alike(run, "hinted")) == ([True] * 2, [True] * 2, hinted)
    assert alike(run, "sums") == [3.0] * 4
    answers = [event["answer"] for event in run.events("policy.chosen", 0)]
    kind = policy.rpartition(",")[2]
    assert answers == [kind, kind, kind if hinted else "none", kind]


def test_groups_made_anew_keep_the_memory_of_one(tmp_path: Path) -> None:
    """A tensor that is there still when the next group's first scope begins does not keep its memory for ever."""
    text = """
import torch
import torch.distributed as dist
import tracehook
from common import MB, start

device = start()
for _ in range(6):
    group = dist.new_group([0, 1])
    with tracehook.symmetric(group):
        tensor = torch.empty(512 * MB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
dist.destroy_process_group()
"""
    env = {"TRACEHOOK_EMU_MEMORY_GB": "2"}
    rehearse(write_job(tmp_path / "job.py", text), ranks=2, log=tmp_path / "log", env=env).assert_good()

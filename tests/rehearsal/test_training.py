"""The drop-ins for training: FSDP2's buffers and DDP's buckets are symmetric, and nothing is made anew each step."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.packages import install_policy, with_packages
from support.rehearsal import JOBS, Rehearsal, rehearse, write_job

STEPS = 10
MODULES = 4  # three blocks, and the model itself


def train(job: str | Path, *arguments: str, log: Path, ranks: int = 2, env: dict[str, str] | None = None) -> Rehearsal:
    """Run a job of training; it ends well, with a clean audit."""
    run = rehearse(job, *arguments, log=log, ranks=ranks, env=env, timeout=120).assert_good()
    Audit(log).expect(CLEAN)
    return run


@pytest.mark.parametrize(
    ("ranks", "arguments", "gathers", "symmetric"),
    [
        (2, "each", 2, 2),
        (4, "each lazy", 2, 2),
        (2, "kept", 1, 1),
        (2, "mixed sum", 2, 2),
        (4, "hybrid", 2, 2),
        (4, "partly", 2, 1),
    ],
)
def test_fsdp2(tmp_path: Path, ranks: int, arguments: str, gathers: int, symmetric: int) -> None:
    """All buffers over the group of the shards are symmetric from the first step, and no step makes a window more."""
    run = train("fsdp_dropin.py", *arguments.split(), log=tmp_path / "log", ranks=ranks)
    for rank, facts in enumerate(run.told):
        assert facts["changed"] == MODULES
        seen = facts["seen"]
        assert len(seen["all_gather"]) == gathers * MODULES * STEPS
        assert sum(seen["all_gather"]) == symmetric * MODULES * STEPS
        assert seen["reduce_scatter"] == [True] * MODULES * STEPS
        assert facts["windows"][2] > 0
        assert len(set(facts["windows"][2:])) == 1
        assert len(set(facts["segments"][2:])) == 1
        made = run.events("register.window", rank)
        assert len(made) == facts["windows"][-1], "none was ended and made anew"


def test_fsdp2_without_tracehook(tmp_path: Path) -> None:
    """Where tracehook is not enabled, FSDP2 makes the same collectives on ordinary memory."""
    run = rehearse("fsdp_dropin.py", "each", log=tmp_path, hook=False, ranks=2).assert_good()
    for facts in run.told:
        assert facts["changed"] == MODULES
        assert facts["seen"]["all_gather"] == [False] * 2 * MODULES * STEPS
        assert facts["seen"]["reduce_scatter"] == [False] * MODULES * STEPS
        assert facts["windows"] == [0] * STEPS


LARGE_GATHERS = '''
from tracehook.policies import Answer

def choose(request):
    """Windows for all-gathers of 2 MiB or more: those of a block, not those of the embedding and the head."""
    is_large = request.operation == "all_gather" and request.nbytes >= 2 << 20
    return None if is_large else Answer.NONE
'''


def test_a_policy_chooses_by_size(tmp_path: Path) -> None:
    """A policy hears the operation and the bytes of each buffer, and may leave some in ordinary memory."""
    install_policy(tmp_path / "site", "large-gathers", LARGE_GATHERS)
    job = with_packages(tmp_path / "site", JOBS / "fsdp_dropin.py")
    run = train(job, "each", log=tmp_path / "log", env={"SYMM_REGISTER_POLICY": "large-gathers"})
    for facts in run.told:
        assert sum(facts["seen"]["all_gather"]) == 2 * (MODULES - 1) * STEPS
        assert not any(facts["seen"]["reduce_scatter"])


@pytest.mark.parametrize(
    ("arguments", "ordinary"),
    [
        ("apply", 1),
        ("apply gradient_as_bucket_view", 1),
        ("apply static_graph", 2),
        ("inside find_unused_parameters", 0),
    ],
)
def test_ddp(tmp_path: Path, arguments: str, ordinary: int) -> None:
    """The lasting buckets are symmetric, and no step after the one that makes them makes a window."""
    run = train("ddp_dropin.py", *arguments.split(), log=tmp_path)
    for facts in run.told:
        assert facts["steps"] == [False] * ordinary + [True] * (STEPS - ordinary)
        assert facts["buckets"][-1] > 1
        assert facts["windows"][ordinary] > 0
        assert len(set(facts["windows"][ordinary:])) == 1


def test_ddp_without_a_communication_hook(tmp_path: Path) -> None:
    """What DDP itself calls reduces the symmetric buckets: their places are compared at their first use."""
    run = train("ddp_dropin.py", "apply", "unhooked", log=tmp_path)
    windowed = [event for event in run.events("placement.first_use", 0) if event["operation"] == "all_reduce"]
    assert len(windowed) > 1


UNEVEN = """
import torch, torch.distributed as dist, tracehook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from common import RANK, start, tell
device = start()
def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 64).to(device)).mean().backward()
        optimizer.step()
def made():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
    tracehook.ddp.apply(model)
    return model
model = made()
with Join([model]):
    train(model, 4 + RANK)
other, refused = made(), None
train(other, 3)
with Join([other], enable=False):
    train(other, 2)
try:
    with Join([other]):
        train(other, 4 + RANK)
except ValueError as problem:
    refused = str(problem)
tell(sum=sum(each.sum().item() for each in model.parameters()), refused=refused)
dist.destroy_process_group()
"""


def test_ddp_with_uneven_inputs(tmp_path: Path) -> None:
    """A rank that has joined reduces zeros that are in no window: so no bucket may be in one."""
    run = rehearse(write_job(tmp_path / "job.py", UNEVEN), ranks=2, log=tmp_path / "log").assert_good()
    assert run.facts(0) == run.facts(1)
    assert "leave out tracehook.ddp.apply for models with uneven inputs" in run.facts(0)["refused"]


def test_ddp_made_in_a_scope_loses_its_buckets(tmp_path: Path) -> None:
    """A scope around the constructor alone serves one step: why there is something to apply."""
    run = train("ddp_dropin.py", "inside", log=tmp_path)
    assert run.facts(0)["steps"] == [True] + [False] * (STEPS - 1)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_values_where_kernels_compute(tmp_path: Path, kind: str) -> None:
    """On CPUs the drop-ins change no bit of a loss: they pass on what they are given, and rebuild what DDP rebuilds."""
    run = rehearse("training_on_cpu.py", kind, log=tmp_path, ranks=2).assert_good()
    seen = [run.facts(rank) for rank in (0, 1)]
    assert all(facts["plain"] == facts["dropped_in"] for facts in seen)
    assert len({loss for facts in seen for loss in facts["plain"]}) == 2 * 4, "each step and rank has a loss of its own"

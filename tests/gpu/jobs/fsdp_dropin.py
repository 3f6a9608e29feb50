"""Trains the same model with FSDP2 alone, with tracehook.fsdp.apply, and with its sums, and compares them.

Rank 0 prints one line of JSON. Run it as ``SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 2 fsdp_dropin.py``.
"""

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums in each run

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import tracehook

sys.path.append(str(Path(__file__).parents[2] / "rehearsal" / "jobs"))
from llama import Llama

LAYERS, DIM, HEADS, VOCABULARY = 6, 1024, 16, 512
BATCH, LENGTH = 4, 256
STEPS, WARM, PROFILED = 20, 5, 5  # the first steps are not timed; nor are the last, which the profiler sees
BOUND = 1e-3  # relative, of a loss: symmetric kernels may add in another order
ARMS = {"plain": None, "apply": False, "force_sum": True}

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False  # or each buffer is filled before it is used


def sharded(force_sum: bool | None) -> torch.nn.Module:
    """Return the model, with the same weights each time; None: without tracehook's buffers."""
    torch.manual_seed(0)
    model = Llama(LAYERS, DIM, HEADS, VOCABULARY).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mp_policy=policy)
    if force_sum is not None:
        assert tracehook.fsdp.apply(model, force_sum=force_sum) == LAYERS + 1
    return model


def kernels(seen: profile, name: str) -> dict[str, object]:
    """Return the names of NCCL's kernels for a collective, and their milliseconds in a step on this rank."""
    found = [row for row in seen.key_averages() if row.key.startswith("nccl") and f"Kernel_{name}" in row.key]
    total = sum(row.self_device_time_total for row in found)
    return {"kernels": sorted({row.key.split("(")[0] for row in found}), "ms_per_step": total / 1e3 / PROFILED}


def train(force_sum: bool | None) -> tuple[list[float], list[torch.Tensor], dict[str, object]]:
    """Return the losses, this rank's parts of the parameters at the end, and what was measured."""
    model = sharded(force_sum)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses, seconds = [], []
    seen = profile(activities=[ProfilerActivity.CUDA])
    for step in range(STEPS):
        begin = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        tokens = ((begin + torch.arange(LENGTH + 1)) % VOCABULARY).to(device)  # each is followed by the next number
        if step == STEPS - PROFILED:
            seen.start()
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    seen.stop()
    told = {
        "step_ms": 1e3 * statistics.median(seconds[WARM : STEPS - PROFILED]),
        "all_gather": kernels(seen, "AllGather"),
        "reduce_scatter": kernels(seen, "ReduceScatter"),
        "windows": sum(row["windows"] for row in tracehook.status().get("windows", [])),
    }
    return losses, [parameter.to_local().detach().clone() for parameter in model.parameters()], told


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, as a part of the largest number."""
    return float((one - other).abs().max() / one.abs().max())


def compared(
    losses: torch.Tensor, parameters: list[torch.Tensor], first: tuple[torch.Tensor, list[torch.Tensor]]
) -> dict[str, Any]:
    """Compare with the first arm on all ranks: NaN is equal to nothing, so a run that diverges fails."""
    pairs = [*zip(first[1], parameters, strict=True)]
    facts = torch.tensor(
        [
            not torch.equal(first[0], losses),
            not all(torch.equal(one, other) for one, other in pairs),
            ((first[0] - losses).abs() / first[0].abs()).max().item(),
            max(difference(one, other) for one, other in pairs),
        ],
        dtype=torch.float64,
        device=device,
    )
    dist.all_reduce(facts, op=dist.ReduceOp.MAX)
    other_losses, other_parameters, by_loss, by_parameter = facts.tolist()
    return {
        "losses_bit_equal": not other_losses,
        "parameters_bit_equal": not other_parameters,
        "loss_difference": by_loss,
        "parameter_difference": by_parameter,
    }


arms, first = {}, None
for name, force_sum in ARMS.items():
    losses, parameters, told = train(force_sum)
    ended = torch.tensor(losses, dtype=torch.float64)
    first = first or (ended, parameters)
    arms[name] = {**told, "loss": losses[-1], **compared(ended, parameters, first)}
    assert losses[-1] < losses[0], f"{name} learns nothing: {losses}"
    gc.collect()  # FSDP2's objects refer to each other
    torch.cuda.empty_cache()
if dist.get_rank() == 0:
    versions = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    print(json.dumps({"ranks": dist.get_world_size(), **versions, "bound": BOUND, **arms}), flush=True)
for name, arm in arms.items():
    assert arm["loss_difference"] <= BOUND, f"{name}: {arm}"
dist.destroy_process_group()

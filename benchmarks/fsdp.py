"""A training step of FSDP2 with tracehook's buffers against one without: the models take turns, step by step.

    SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 2 benchmarks/fsdp.py [ROUNDS] [DIM] [LAYERS] [TOKENS]

Arms: plain (torch alone), apply (`tracehook.fsdp.apply`), sum (with `force_sum=True`). A policy in SYMM_REGISTER_POLICY
decides which buffers are symmetric. A step's time is that of the slowest rank. The time of a kernel of NCCL is that of
the rank which came last to it: the others' kernels also wait.
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import tracehook

sys.path.append(str(Path(__file__).parents[1] / "tests" / "rehearsal" / "jobs"))
from llama import Llama

ROUNDS, DIM, LAYERS, TOKENS = [*map(int, sys.argv[1:]), *(30, 2048, 8, 4096)[len(sys.argv) - 1 :]]
LENGTH, VOCABULARY, WARM = 512, 512, 5
ARMS = {"plain": None, "apply": False, "sum": True}

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
store = dist.new_group(backend="gloo")


def sharded(force_sum: bool | None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer; None: without tracehook's buffers."""
    torch.manual_seed(0)
    model = Llama(LAYERS, DIM, DIM // 128, VOCABULARY).to(device)
    for part in (*model.blocks, model):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    if force_sum is not None:
        tracehook.fsdp.apply(model, force_sum=force_sum)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """Train one step; return its milliseconds on this rank."""
    torch.cuda.synchronize()
    dist.barrier(store)
    begin = time.perf_counter()
    logits = model(tokens[:, :-1])
    functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def slowest(values: list[float]) -> list[float]:
    """Return the largest of all ranks."""
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=store)
    return found.tolist()


def kernels(seen: profile) -> dict[str, float]:
    """Return microseconds of each of NCCL's kernels, one after the other: of the rank that came last to it."""
    found = [event for event in seen.events() if event.name.startswith("nccl") and "Kernel" in event.name]
    found.sort(key=lambda event: event.time_range.start)
    times = torch.tensor([event.device_time for event in found], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MIN, group=store)
    total: dict[str, float] = defaultdict(float)
    for event, took in zip(found, times.tolist(), strict=True):
        total[event.name.split("(")[0]] += took
    return dict(total)


tokens = torch.randint(VOCABULARY, (TOKENS // LENGTH, LENGTH + 1), device=device)
models = {name: sharded(force_sum) for name, force_sum in ARMS.items()}
samples: dict[str, list[float]] = defaultdict(list)
for number in range(-WARM, ROUNDS):
    for name in [*models][number % 3 :] + [*models][: number % 3]:
        took = step(*models[name], tokens)
        if number >= 0:
            samples[name].append(took)
told = {}
for name, arm in models.items():
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step(*arm, tokens)
    told[name] = kernels(seen)
times = {name: slowest(each) for name, each in samples.items()}
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, {LAYERS} layers of {DIM}, {TOKENS} tokens a rank")
    for name, mine in times.items():
        low, middle, high = statistics.quantiles((a / b for a, b in zip(mine, times["plain"], strict=True)), n=4)
        print(f"{name:6} {statistics.median(mine):8.2f} ms a step; / plain {middle:.3f} [{low:.3f} .. {high:.3f}]")
        for kernel, took in sorted(told[name].items()):
            print(f"         {took:10.1f} us a step in {kernel}")
dist.destroy_process_group()

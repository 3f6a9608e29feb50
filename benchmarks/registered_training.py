"""Step times of three small training jobs: with tracehook's registrations, with those of torch's hook, with neither.

    python benchmarks/registered_training.py --all --rounds 3 --json runs.json
    torchrun --standalone --nproc-per-node 2 benchmarks/registered_training.py --job fsdp2
    SYMM_REGISTER_HOOK=1 SYMM_REGISTER_MEMORY=vmm torchrun ... benchmarks/registered_training.py --job fsdp2 --in-turn

Two ranks on two devices of one host. fsdp2 gathers four layers of a transformer, 384 MiB each; pipeline has two stages
that pass on 64 MiB by isend and irecv; moe has four layers that exchange tokens of 128 MiB by all_to_all_single. Each
run is one arm, which the environment chooses:

    neither     nothing
    torch       TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1
    tracehook   SYMM_REGISTER_HOOK=1 SYMM_REGISTER_MEMORY=vmm

A run prints a line of JSON. Its steps are those of the slowest rank; `in_effect` counts the registrations that NCCL
used, `in_vain` those that it did not. --all starts the runs in turn, and prints a table: the median of the runs'
medians, between the smallest and the largest, and likewise the time divided by that of `neither` in the same round.
Runs of one arm differ among themselves, so --in-turn compares within one run: some steps with registrations, as many
without, in turn, by tracehook.enable() and disable(). It prints the time of a pair's steps with them / without.
(A rehearsal ends with status 86, because torch's hook leaves registrations on communicators that end.)
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_to_all_single

import tracehook

TORCH, HOOK, MEMORY = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "SYMM_REGISTER_HOOK", "SYMM_REGISTER_MEMORY"
ARMS = {"neither": {}, "torch": {TORCH: "1"}, "tracehook": {HOOK: "1", MEMORY: "vmm"}}
DIM, TOKENS, WARM, STEPS, SECONDS, DTYPE = 4096, 16384, 8, 64, 45, torch.bfloat16  # SECONDS: that a run may take
PAIRS, WARM_AFTER = 25, 3  # of --in-turn: steps that are not timed after each switch
if "--tiny" in sys.argv:  # for a rehearsal
    DIM, TOKENS, WARM, STEPS, SECONDS = 128, 256, 1, 8, 300
    PAIRS = 3

Job = tuple[nn.Module, Callable[[], None]]  # a model, and a pass forward and backward


def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, hidden, bias=False), nn.GELU(), nn.Linear(hidden, DIM, bias=False))


def fsdp2(device: torch.device) -> Job:
    """Gather the parameters of each layer twice a step, and scatter its gradients."""
    with device:
        layers = [nn.TransformerEncoderLayer(DIM, DIM // 128, 4 * DIM, 0.0, batch_first=True) for _ in range(4)]
        tokens = torch.randn(2, TOKENS // 32, DIM, dtype=DTYPE)
    model = nn.Sequential(*layers)
    for part in (*layers, model):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=DTYPE, reduce_dtype=DTYPE))
    return model, lambda: model(tokens).square().mean().backward()


def pipeline(device: torch.device) -> Job:
    """Send activations to the second stage, and their gradients back, in eight small batches a step."""
    batches = range(8)
    with device:
        stage = mlp(DIM // 2).to(DTYPE)
        inputs = torch.randn(TOKENS // 2, DIM, dtype=DTYPE)

    def first() -> None:
        outputs, sends = [], []
        for _ in batches:
            outputs.append(stage(inputs))
            sends.append(dist.isend(outputs[-1].detach(), 1))
        gradients = [torch.empty_like(inputs) for _ in batches]
        arrivals = [dist.irecv(each, 1) for each in gradients]
        for output, gradient, arrival in zip(outputs, gradients, arrivals, strict=True):
            arrival.wait()
            output.backward(gradient)
        for send in sends:
            send.wait()

    def second() -> None:
        activations, sends = [torch.empty_like(inputs) for _ in batches], []
        arrivals = [dist.irecv(each, 0) for each in activations]
        for activation, arrival in zip(activations, arrivals, strict=True):
            arrival.wait()
            stage(activation.requires_grad_()).square().mean().backward()
            sends.append(dist.isend(activation.grad, 0))
        for send in sends:
            send.wait()

    return stage, second if dist.get_rank() else first


class Experts(nn.Module):
    """A layer with one expert on each rank. Each expert gets as many tokens of a rank as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(DIM, 1, bias=False), mlp(DIM // 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Send each token to its expert and back, weighted by its score."""
        score, order = self.router(tokens).squeeze(-1).sort()
        chosen = tokens[order]
        answers = self.expert(all_to_all_single(torch.empty_like(chosen), chosen))
        returned = all_to_all_single(torch.empty_like(answers), answers)
        return tokens.index_add(0, order, returned * score.sigmoid().unsqueeze(-1))


def moe(device: torch.device) -> Job:
    """Exchange tokens four times in each layer and step: there and back, forward and backward."""
    with device:
        model = nn.Sequential(*(Experts() for _ in range(4))).to(DTYPE)
        tokens = torch.randn(TOKENS, DIM, dtype=DTYPE)
    return model, lambda: model(tokens).square().mean().backward()


JOBS = {"fsdp2": fsdp2, "pipeline": pipeline, "moe": moe}


def compare_in_turn(job: str, steps_of: Callable[[int, int], list[float]]) -> None:
    """Print the times of steps with registrations and without, in turn."""
    steps_of(WARM, 0)
    arms: list[list[float]] = [[], []]
    for turn in range(PAIRS):
        for on in (True, False) if turn % 2 else (False, True):
            (tracehook.enable if on else tracehook.disable)()
            arms[on].append(statistics.median(steps_of(WARM_AFTER, STEPS // 8)))
    tracehook.enable()
    steps_of(1, 0)
    communicators = tracehook.status()["communicators"]
    ratios = sorted(with_ / without for without, with_ in zip(*arms, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    told: dict[str, Any] = {"job": job, "with / without": middle, "quartiles": [low, high], "pairs": PAIRS}
    told |= dict(zip(("without_ms", "with_ms"), map(statistics.median, arms), strict=True))
    told |= {name: sum(each[name] for each in communicators) for name in ("in_effect", "in_vain")}
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)


def run(job: str, *, in_turn: bool) -> None:
    """Train, and print what was measured."""
    local = int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    os.sched_setaffinity(0, cores[local * half : (local + 1) * half] or cores)  # no rank takes time from the other
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    store = dist.new_group(backend="gloo")
    model, forward_and_backward = JOBS[job](device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def steps_of(warm: int, many: int) -> list[float]:
        """Return the milliseconds of so many steps, on the slowest rank."""
        times = []
        for _ in range(warm + many):
            dist.barrier(store)
            begin = time.perf_counter()
            forward_and_backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        found = torch.tensor(times[warm:], dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=store)
        return list(found.tolist())

    if in_turn:
        compare_in_turn(job, steps_of)
        dist.destroy_process_group()
        return
    steps = steps_of(WARM, STEPS)
    reserved = torch.cuda.max_memory_reserved() >> 20
    low, middle, high = statistics.quantiles(steps, n=4)
    arm = next(arm for arm in reversed(ARMS) if ARMS[arm].items() <= os.environ.items())
    told: dict[str, Any] = {"job": job, "arm": arm, "step_ms": middle, "quartiles": [low, high], "steps": len(steps)}
    told |= {"reserved_mib": reserved, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if arm == "tracehook":
        communicators = tracehook.status()["communicators"]
        told |= {name: sum(each[name] for each in communicators) for name in ("in_effect", "in_vain")}
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


def start(job: str, arm: str, flags: list[str]) -> dict[str, Any]:
    """Return what a run measured; nothing if it failed or was not done in time."""
    settings = {key: value for key, value in os.environ.items() if key not in (TORCH, HOOK, MEMORY)} | ARMS[arm]
    settings |= {"OMP_NUM_THREADS": "1", "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "--job", job, *flags]
    with subprocess.Popen([sys.executable, *command], env=settings, stdout=subprocess.PIPE, text=True) as process:
        try:
            out, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            out, _ = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    print(lines[-1] if lines else f"{job}, {arm}: no result, status {process.returncode}", flush=True)
    return dict(json.loads(lines[-1])) if lines else {}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f} .. {max(values):.3f}]" if values else "unknown"


def compare(rounds: int, flags: list[str], path: Path | None) -> None:
    """Start the runs in turn, and print the table."""
    found: dict[str, dict[str, list[Any]]] = {job: {arm: [] for arm in ARMS} for job in JOBS}
    for number in range(rounds):
        for job in JOBS:
            for arm in [*ARMS][number % 3 :] + [*ARMS][: number % 3]:
                found[job][arm].append(start(job, arm, flags))
    if path:
        path.write_text(json.dumps(found))
    for job, arms in found.items():
        for arm, runs in arms.items():
            steps = [each["step_ms"] for each in runs if each]
            pairs = [pair for pair in zip(runs, arms["neither"], strict=True) if all(pair)]
            ratios = [one["step_ms"] / neither["step_ms"] for one, neither in pairs]
            reserved = max((each["reserved_mib"] for each in runs if each), default=0)
            print(f"{job:9}{arm:10}{spread(steps)} ms, / neither {spread(ratios)}, {reserved:.0f} MiB, n={len(steps)}")


parser = argparse.ArgumentParser(description="time steps of training with and without registrations")
what = parser.add_mutually_exclusive_group(required=True)
what.add_argument("--job", choices=JOBS, help="one run, under torchrun")
what.add_argument("--all", action="store_true", help="start the runs of all jobs and arms in turn")
parser.add_argument("--in-turn", action="store_true", help="with --job: with and without registrations in one run")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--json", type=Path, help="file for what all runs measured")
parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
chosen = parser.parse_args()
run(chosen.job, in_turn=chosen.in_turn) if chosen.job else compare(chosen.rounds, ["--tiny"] * chosen.tiny, chosen.json)

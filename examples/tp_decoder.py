"""A tensor-parallel decoder: how long a step takes with the outputs of its layers in symmetric or ordinary memory.

SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 2 examples/tp_decoder.py --json step.json
tracehook rehearse --devices 2 -- torchrun --nproc-per-node 2 examples/tp_decoder.py --layers 2 --hidden 256 --heads 4 \
    --kv-heads 2 --ffn 512 --context 16 --batches 1,4 --check none        # without a GPU; the times mean nothing

The shapes are those of Llama-3-8B with 16 layers. Attention is simplified: no rotation of positions, and a cache of
fixed length whose last place each step writes. Each layer reduces twice. Three arms run the same step, as CUDA graphs:

plain      the two buffers that are reduced are ordinary memory
symmetric  they come from a scope that says nothing of operation and size
policy     they come from a scope that says both, so that SYMM_REGISTER_POLICY can decide by the batch

The arm `symmetric` also asks the policies. One that decides by size leaves its question to the next, for instance with
SYMM_REGISTER_POLICY=by-size,isolated; the table says where each arm's buffers were.
"""

import argparse
import json
import math
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import tracehook

ARMS = ("plain", "symmetric", "policy")
REDUCTIONS = 2  # in each layer
# bf16 has 8 bits. Kernels that add in another order differ by one rounding in each reduction, and layers amplify it.
TOLERANCE = 2**-5


@dataclass
class Layer:
    """This rank's part of one layer: heads and columns are split, as the rows of what follows them."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor  # (largest batch, this rank's kv heads, context, head size)
    values: torch.Tensor


class Decoder:
    """Random weights, which differ between ranks."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        ranks = dist.get_world_size()
        self.size = arguments.hidden // arguments.heads
        self.heads, self.kv_heads = arguments.heads // ranks, arguments.kv_heads // ranks
        ffn, hidden, batch = arguments.ffn // ranks, arguments.hidden, max(arguments.batches)
        random = torch.Generator(device).manual_seed(dist.get_rank())

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, scale, generator=random)

        self.layers = [
            Layer(
                qkv=normal(hidden, (self.heads + 2 * self.kv_heads) * self.size, scale=hidden**-0.5),
                out=normal(self.heads * self.size, hidden, scale=arguments.hidden**-0.5),
                gate_up=normal(hidden, 2 * ffn, scale=hidden**-0.5),
                down=normal(ffn, hidden, scale=arguments.ffn**-0.5),
                keys=normal(batch, self.kv_heads, arguments.context, self.size),
                values=normal(batch, self.kv_heads, arguments.context, self.size),
            )
            for _ in range(arguments.layers)
        ]

    def step(self, tokens: torch.Tensor, attended: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states; the two buffers are reduced over the ranks in each layer."""
        for layer in self.layers:
            torch.mm(self._attention(layer, _norm(tokens)), layer.out, out=attended)
            dist.all_reduce(attended)
            tokens = tokens + attended
            gate, up = torch.mm(_norm(tokens), layer.gate_up).chunk(2, dim=-1)
            torch.mm(F.silu(gate) * up, layer.down, out=projected)
            dist.all_reduce(projected)
            tokens = tokens + projected
        return tokens

    def _attention(self, layer: Layer, tokens: torch.Tensor) -> torch.Tensor:
        batch, heads = tokens.shape[0], (self.heads, self.kv_heads, self.kv_heads)
        query, key, value = torch.mm(tokens, layer.qkv).split([count * self.size for count in heads], dim=-1)
        keys, values = layer.keys[:batch], layer.values[:batch]
        keys[:, :, -1] = key.view(batch, self.kv_heads, self.size)
        values[:, :, -1] = value.view(batch, self.kv_heads, self.size)
        # There is one position. So the query heads that share a kv head can stand where positions stand.
        query = query.view(batch, self.kv_heads, -1, self.size)
        return F.scaled_dot_product_attention(query, keys, values).reshape(batch, -1)


def _norm(tokens: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(tokens, tokens.shape[-1:])


class Arm:
    """One way to make the buffers, and the graph of a step that uses them."""

    def __init__(self, name: str, decoder: Decoder, tokens: torch.Tensor) -> None:
        hints: dict[str, Any] = {"disabled": name == "plain"}
        if name == "policy":
            hints |= {"operation": "all_reduce", "nbytes": tokens.nbytes}
        self.buffers = []
        for _ in range(REDUCTIONS):
            with tracehook.symmetric(graph=True, **hints):
                self.buffers.append(torch.empty_like(tokens))
        self.is_symmetric = all(tracehook.is_symmetric(buffer) for buffer in self.buffers)
        self.output = torch.zeros_like(tokens)
        # The first use of a buffer is compared between the ranks, which a capture cannot wait for.
        decoder.step(tokens, *self.buffers)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output.copy_(decoder.step(tokens, *self.buffers))
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds(self, replays: int) -> float:
        """Return this rank's time of a step: the mean of some replays one after the other."""
        self.begin.record()
        for _ in range(replays):
            self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return 1000 * self.begin.elapsed_time(self.end) / replays


def measured(arguments: argparse.Namespace, decoder: Decoder, batch: int, others: dist.ProcessGroup) -> dict[str, Any]:
    """Return one row of the table: times in microseconds, where the buffers were, and the errors beside `plain`."""
    random = torch.Generator().manual_seed(batch)  # the same tokens on all ranks
    tokens = torch.randn(batch, arguments.hidden, generator=random).bfloat16().to("cuda")
    arms = {name: Arm(name, decoder, tokens) for name in ARMS}
    samples = torch.zeros(arguments.rounds + 1, len(ARMS), dtype=torch.float64)
    for number in range(arguments.rounds + 1):
        for place in range(len(ARMS)):  # another arm begins in each round
            index = (number + place) % len(ARMS)
            dist.barrier(others)
            samples[number, index] = arms[ARMS[index]].microseconds(arguments.replays)
    dist.all_reduce(samples, dist.ReduceOp.MAX, group=others)  # a step takes as long as on its slowest rank
    row: dict[str, Any] = {"batch": batch, "nbytes": tokens.nbytes}
    for name, times in zip(ARMS, samples[1:].T.tolist(), strict=True):  # the first round warms up
        row[name] = {"us": statistics.median(times), "rounds": times, "symmetric": arms[name].is_symmetric}
    if arguments.check == "outputs":
        expected = arms["plain"].output.float()
        for name in ARMS[1:]:
            error = float((arms[name].output.float() - expected).norm() / expected.norm())
            row[name]["error"] = error
            if not error <= TOLERANCE:  # also if it is not a number
                raise SystemExit(f"batch {batch}: the output of {name} differs from plain by {error}, > {TOLERANCE}")
    torch.cuda.synchronize()
    for arm in arms.values():
        arm.graph.reset()  # before the group ends: NCCL waits for graphs with its collectives
    return row


def line(row: dict[str, Any]) -> str:
    """Return one row as text. A ratio under 1 is a gain."""
    plain = row["plain"]["us"]
    ratios = [row[name]["us"] / plain if plain else math.nan for name in ARMS[1:]]
    places = ["symmetric" if row[name]["symmetric"] else "ordinary" for name in ARMS[1:]]
    times = "".join(f"{row[name]['us']:11.1f}" for name in ARMS)
    return f"{row['batch']:5}{row['nbytes'] / 1024:8.0f}{times}{ratios[0]:9.3f}{ratios[1]:9.3f}  {', '.join(places)}"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=14336)
    parser.add_argument("--context", type=int, default=256, help="length of the cache in tokens")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128,256,512", help="numbers of tokens, by commas")
    parser.add_argument("--rounds", type=int, default=15, help="times that each arm is measured")
    parser.add_argument("--replays", type=int, default=10, help="steps in each of them")
    parser.add_argument("--check", choices=["outputs", "none"], default="outputs", help="compare the arms' outputs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    arguments.batches = [int(batch) for batch in arguments.batches.split(",")]
    ranks = int(os.environ["WORLD_SIZE"])
    for name in ("heads", "kv_heads", "ffn"):
        if getattr(arguments, name) % ranks:
            parser.error(f"--{name.replace('_', '-')} {getattr(arguments, name)} cannot be split over {ranks} ranks")
    return arguments


@torch.inference_mode()
def main() -> None:
    arguments = read_arguments()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    others = dist.new_group(backend="gloo")  # for barriers and times, so that NCCL has the decoder's calls alone
    tracehook.enable()
    first = dist.get_rank() == 0
    decoder = Decoder(arguments, device)
    policy = os.environ.get("SYMM_REGISTER_POLICY", "isolated")
    if first:
        print(f"{arguments.layers} layers, hidden {arguments.hidden}, {dist.get_world_size()} ranks, policy {policy}")
        print("us a step, median of the rounds' slowest ranks; ratios to plain; memory of symmetric, of policy")
        print(f"batch{'KiB':>8}" + "".join(f"{name:>11}" for name in ARMS) + f"{'symm':>9}{'policy':>9}  memory")
    rows = []
    for batch in arguments.batches:
        rows.append(measured(arguments, decoder, batch, others))
        if first:
            print(line(rows[-1]), flush=True)
    if first and arguments.json:
        shapes = {
            name: getattr(arguments, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "context")
        }
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "nccl": torch.cuda.nccl.version()}
        about |= {"ranks": dist.get_world_size(), "replays": arguments.replays, "policy": policy, "command": sys.argv}
        arguments.json.write_text(json.dumps({**about, **shapes, "rows": rows}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

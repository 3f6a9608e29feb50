"""How many windows a model's groups need over one pool: tracehook's rule, and SGLang's, on one trace of allocations.

``tracehook rehearse --devices 4 -- torchrun --standalone --nproc-per-node 4 benchmarks/window_count.py``, or without
the first part on GPUs. The trace is that of a mixture-of-experts transformer which serves prompts and then decodes:
attention in tensor-parallel groups, the hidden states gathered over data-parallel groups, experts over all ranks. It is
made from a seed, equal on all ranks, and played twice: through ``tracehook.symmetric(group)``, where a group gets
windows on the segments that its own scopes touched, and through SGLang's contexts, where it gets one on every segment
of the pool. Both register with NCCL for real; only the times are estimates.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from others import RawCommunicator, leave, raw_communicator, sglang

import tracehook

SEED = 7
LAYERS = 60
DENSE_LAYERS = 3  # the first ones have no experts
HIDDEN = 7168
VOCABULARY = 129280
TOP = 8  # experts for each token
CHUNK = 4096  # tokens of a prompt that go through the model at once, for each rank
PROMPTS = (256, 700, 1500, 2600, 4000, 7000)  # tokens for each rank, growing
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)  # sequences that are decoded for each rank, growing
MS_PER_WINDOW = {2: 3.0, 4: 18.0}  # measured on GPUs, by the ranks of the communicator
BF16 = 2


class Act(NamedTuple):
    """One scope of one group, with one tensor; then the tensors that are done with."""

    group: str
    tensor: str
    size: int  # bytes
    frees: tuple[str, ...] = ()


def trace(dp: int, ep: int) -> Iterator[Act]:
    """Yield the acts of all forward passes."""
    chance = random.Random(SEED)
    for prompt in PROMPTS:
        for begin in range(0, prompt, CHUNK):
            yield from forward(min(CHUNK, prompt - begin), dp, ep, chance)
        for batch in BATCHES[: 4 + PROMPTS.index(prompt)]:
            yield from forward(batch, dp, ep, chance)
    for batch in reversed(BATCHES):
        yield from forward(batch, dp, ep, chance)


def forward(tokens: int, dp: int, ep: int, chance: random.Random) -> Iterator[Act]:
    """Yield the acts of one pass over `tokens` tokens for each rank of a data-parallel group."""
    states = tokens * HIDDEN * BF16
    yield Act("TP", "hidden", states)  # the embedding, summed over its shards
    for layer in range(LAYERS):
        yield Act("TP", "attention", states, ("hidden",))  # to be all-reduced in place
        if layer < DENSE_LAYERS:
            yield Act("TP", "hidden", states, ("attention",))
            continue
        yield Act("DP", "gathered", states * dp, ("attention",))
        # Every token goes to TOP experts; how well the ranks are filled differs between layers.
        rows = int(tokens * dp * TOP / ep * chance.choice((1.0, 1.1, 1.25, 1.5))) + 8
        yield Act("EP", "dispatched", rows * HIDDEN)  # in fp8
        yield Act("EP", "scales", rows * HIDDEN // 128 * 4)
        yield Act("EP", "counts", ep * 256 * 4)
        yield Act("EP", "combined", rows * HIDDEN * BF16, ("dispatched", "scales", "counts", "gathered"))
        yield Act("DP", "hidden", states, ("combined",))  # reduce-scattered
    # One row of logits for each sequence.
    sequences = tokens if tokens <= max(BATCHES) else 1
    yield Act("TP", "logits", sequences * VOCABULARY * BF16, ("hidden",))
    yield Act("DP", "samples", sequences * dp * 8, ("logits",))
    yield Act("DP", "", 0, ("samples",))


def play(acts: Iterator[Act], scope_of: Any, device: torch.device) -> tuple[int, int]:
    """Make and free the tensors. Returns the number of scopes, and the most bytes that were alive at once."""
    alive: dict[str, torch.Tensor] = {}
    scopes = peak = 0
    for act in acts:
        if act.tensor:
            scopes += 1
            with scope_of(act.group):
                tensor = torch.empty(act.size, dtype=torch.uint8, device=device)
            alive[act.tensor] = tensor
        for name in act.frees:
            if name != act.tensor:
                alive.pop(name, None)
        peak = max(peak, sum(tensor.nbytes for tensor in alive.values()))
    return scopes, peak


def make_groups(ranks: int) -> dict[str, Any]:
    """Return this rank's groups: halves that hold neighbours, pairs across them, and all."""
    tp, rank = ranks // 2, dist.get_rank()
    found: dict[str, Any] = {"EP": dist.new_group()}
    for name, members in (
        ("TP", [list(range(begin, begin + tp)) for begin in range(0, ranks, tp)]),
        ("DP", [[offset, offset + tp] for offset in range(tp)]),
    ):
        for one in members:
            group = dist.new_group(one)
            if rank in one:
                found[name] = group
    for group in found.values():
        dist.all_reduce(torch.ones(4, device="cuda"), group=group)
    return found


def count(device: torch.device) -> dict[str, Any]:
    """Play the trace both ways and return what was counted on this rank."""
    ranks = dist.get_world_size()
    groups = make_groups(ranks)
    sizes = {name: dist.get_world_size(group) for name, group in groups.items()}
    given = sizes["DP"], sizes["EP"]

    scopes, peak = play(trace(*given), lambda name: tracehook.symmetric(groups[name]), device)
    status = tracehook.status()
    held = {row["group"]: row["windows"] for row in status["windows"]}
    ours = {name: held[group.group_name] for name, group in groups.items()}
    pools = status["pools"]

    sglang.prepare(device.index)
    comms: dict[str, RawCommunicator] = {
        name: raw_communicator(group, device, number) for number, (name, group) in enumerate(groups.items())
    }
    assert play(trace(*given), lambda name: sglang.use_symmetric_memory(comms[name]), device) == (scopes, peak)
    theirs = {name: sglang.registered(comm) for name, comm in comms.items()}
    return {
        "scopes": scopes,
        "peak": peak,
        "sizes": sizes,
        "tracehook": ours,
        "sglang": theirs,
        "segments": {"tracehook": sum(pool["segments"] for pool in pools), "sglang": sglang.segments()[0]},
        "bytes": {"tracehook": sum(pool["bytes"] for pool in pools), "sglang": sglang.segments()[1]},
    }


def show(found: dict[str, Any]) -> None:
    """Print the table of one rank."""
    gib = 1 << 30
    policy = os.environ.get("SYMM_REGISTER_POLICY", "isolated")
    print(
        f"{dist.get_world_size()} ranks, {LAYERS} layers, {found['scopes']} scopes; "
        f"at most {found['peak'] / gib:.2f} GiB alive at once; policy {policy}"
    )
    print(f"{'':24s}{'tracehook':>12s}{'SGLang':>12s}")
    for name, unit, scale in (("segments", "", 1), ("bytes", " (GiB)", gib)):
        row = found[name]
        print(f"{name + unit:24s}{row['tracehook'] / scale:12.4g}{row['sglang'] / scale:12.4g}")
    costs = {"tracehook": 0.0, "sglang": 0.0}
    for name, size in found["sizes"].items():
        ours, theirs = found["tracehook"][name], found["sglang"][name]
        print(f"{f'windows of {name}, {size} ranks':24s}{ours:12d}{theirs:12d}")
        each = MS_PER_WINDOW.get(size, MS_PER_WINDOW[max(MS_PER_WINDOW)])
        costs["tracehook"] += ours * each
        costs["sglang"] += theirs * each
    totals = {side: sum(found[side].values()) for side in costs}
    print(f"{'windows in all':24s}{totals['tracehook']:12d}{totals['sglang']:12d}")
    print(f"{'tracehook / SGLang':24s}{totals['tracehook'] / totals['sglang']:12.3f}")
    print(f"{'estimated time (s)':24s}{costs['tracehook'] / 1000:12.2f}{costs['sglang'] / 1000:12.2f}", flush=True)


def main() -> None:
    os.environ.setdefault("SYMM_REGISTER_GUARD", "off")  # what is compared registers as without tracehook
    tracehook.enable()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    found = count(device)
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, found)
    assert all(other == found for other in everywhere), everywhere
    if dist.get_rank() == 0:
        show(found)
    leave()


if __name__ == "__main__":
    main()

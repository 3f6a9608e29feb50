"""Row-parallel layers as inductor compiles them, against the same layers without a compiler. Prints what it found."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import tracehook

LAYERS, BATCH, HIDDEN, FFN = 4, 8, 1024, 2048

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
ranks = dist.get_world_size()
own = torch.Generator(device).manual_seed(dist.get_rank())


def weight(rows: int, columns: int, inputs: int) -> torch.Tensor:
    """Return this rank's part of a weight for so many inputs."""
    return torch.randn(rows, columns, device=device, generator=own).mul_(inputs**-0.5).bfloat16()


weights = [(weight(HIDDEN, FFN // ranks, HIDDEN), weight(FFN // ranks, HIDDEN, FFN)) for _ in range(LAYERS)]


def step(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens after all layers, and what the last layer reduced."""
    for up, down in weights:
        reduced = tracehook.all_reduce(F.silu(tokens @ up) @ down)
        tokens = tokens + reduced
    return tokens, reduced


@torch.library.custom_op("program::fill", mutates_args=("out",))  # type: ignore[untyped-decorator]  # torch is Any here
def fill(tokens: torch.Tensor, out: torch.Tensor) -> None:
    """Write in place, as a kernel of the program."""
    out.copy_(tokens)


def filled(tokens: torch.Tensor) -> torch.Tensor:
    """Have that operator write into symmetric memory."""
    out = tracehook.empty(*tokens.shape, dtype=tokens.dtype)
    torch.ops.program.fill(tokens, out)
    return out


with torch.no_grad():
    tokens = torch.randn(BATCH, HIDDEN, generator=torch.Generator().manual_seed(7)).bfloat16().to(device)
    expected, _ = step(tokens)
    compiled = torch.compile(step, fullgraph=True)
    compiled(tokens)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        found, reduced = compiled(tokens)
        torch.cuda.synchronize()
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    kernels = {event.name for event in profiler.events() if "ncclSymk" in event.name}
    own_kernel = torch.compile(filled, fullgraph=True)(tokens)
    right = bool(torch.equal(own_kernel, tokens))
    print(f"error={error}", flush=True)
    print(f"symmetric={tracehook.is_symmetric(reduced)}", flush=True)
    print(f"kernels={len(kernels)}", flush=True)
    print(f"filled={right and tracehook.is_symmetric(own_kernel)}", flush=True)
torch.cuda.synchronize()
dist.destroy_process_group()

"""Collectives in a CUDA graph: captured once, launched with other inputs each time."""

import gc

import torch
import torch.distributed as dist

from common import RANK, WORLD, start, tell

device = start()
N = 4096


def on_device(value: float) -> torch.Tensor:
    return torch.full((N,), float(value)).to(device)


def ends(tensor: torch.Tensor) -> list[float]:
    flat = tensor.cpu()
    return [flat[0].item(), flat[-1].item()]


source, total, gathered = on_device(0), on_device(0), torch.cat([on_device(0)] * WORLD)
dist.all_reduce(total)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total.copy_(source)
    # One on a stream of NCCL's own, one on the stream that is captured.
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    dist.all_gather_into_tensor(gathered, total)
tell(captured=ends(total))

seen = []
for step in (1, 2, 3):
    source.copy_(on_device(step * (RANK + 1)))
    graph.replay()
    seen.append(ends(total) + ends(gathered))
    between = on_device(RANK)
    dist.all_reduce(between)
    seen[-1].append(ends(between)[1])
for _ in range(3):
    graph.replay()
tell(seen=seen, again=ends(total))

del graph, work
gc.collect()
torch.cuda.synchronize()
dist.destroy_process_group()

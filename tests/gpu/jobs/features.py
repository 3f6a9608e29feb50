"""Things that only real devices show: graph capture, side streams, the current device, values. Prints ``ok=``."""

import os

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
rank, world = dist.get_rank(), dist.get_world_size()

tensor = torch.full((4 << 20,), float(rank + 1), device=device)
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [world * (world + 1) / 2], "values"

static = torch.ones(1 << 20, device=device)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    dist.all_reduce(static)
torch.cuda.synchronize()
static.fill_(1.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    grown = torch.empty(64 << 20, dtype=torch.uint8, device=device)  # a new segment, born while capturing
    dist.all_reduce(static)
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
assert static[0].item() == world**3, "graph"

other = (device.index + 1) % torch.cuda.device_count()
torch.cuda.set_device(other)
before = torch.cuda.current_device()
far = torch.empty(64 << 20, dtype=torch.uint8, device=device)
del far
torch.cuda.empty_cache()
assert torch.cuda.current_device() == before, "current device after a segment came and went"
torch.cuda.set_device(device)
dist.barrier()
del graph, grown
dist.destroy_process_group()
print("ok=yes", flush=True)

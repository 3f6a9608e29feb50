"""DDP with its buckets in symmetric memory. Arguments: `apply`, `inside` (of a scope), and options of DDP."""

import sys

import torch
import torch.distributed as dist
import tracehook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from common import start, tell
from llama import Llama

STEPS = 10
OPTIONS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
marks = sys.argv[1:]

device = start()
with torch.device("meta"):
    model = Llama(layers=3, dim=256)
model.to_empty(device=device)
with tracehook.symmetric(disabled="inside" not in marks):
    trained = DistributedDataParallel(
        model, device_ids=[device.index], bucket_cap_mb=4, **{name: True for name in OPTIONS if name in marks}
    )
if "apply" in marks:
    tracehook.ddp.apply(trained)
steps: list[list[bool]] = []


# Without types: DDP compares them with its own, and finds text where a server started the job.
def ask(state, bucket):  # type: ignore[no-untyped-def]
    """Do what DDP does without a hook, and ask whether the bucket lies in a window."""
    steps[-1].append(tracehook.is_symmetric(bucket.buffer()))
    return allreduce_hook(state, bucket)


if "unhooked" not in marks:
    trained.register_comm_hook(None, ask)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
tokens = torch.zeros(2, 16, dtype=torch.long).to(device)
windows = []
for _ in range(STEPS):
    steps.append([])
    trained(tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(sum(row["windows"] for row in tracehook.status().get("windows", [])))
tell(steps=[all(buckets) for buckets in steps], buckets=[len(buckets) for buckets in steps], windows=windows)
del model, trained, optimizer
dist.destroy_process_group()

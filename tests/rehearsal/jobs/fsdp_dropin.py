"""FSDP2 with tracehook.fsdp.apply. The first argument says how the model is sharded; `plain`: without apply."""

import sys

import torch
import torch.distributed as dist
import tracehook
import tracehook.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from common import WORLD, start, tell
from llama import Llama

STEPS = 10
case, *marks = sys.argv[1:]

device = start(bind="lazy" not in marks)
options: dict[str, object] = {"reshard_after_forward": case != "kept"}
if case == "partly":
    options["reshard_after_forward"] = 2
if case == "hybrid":
    options["mesh"] = init_device_mesh("cuda", (WORLD // 2, 2), mesh_dim_names=("replicate", "shard"))
if case == "mixed":
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with torch.device("meta"):
    model = Llama(layers=3, dim=256)
for part in (*model.blocks, model):
    fully_shard(part, **options)
model.to_empty(device=device)
changed = tracehook.fsdp.apply(model, force_sum="sum" in marks) if "plain" not in marks else 0

seen: dict[str, list[bool]] = {"all_gather": [], "reduce_scatter": []}


def watched(name: str) -> None:
    """Ask of the buffers of each collective whether they lie in a window of its group."""
    call = getattr(dist, name)

    def ask(output: torch.Tensor, input: torch.Tensor, *, group: dist.ProcessGroup, **more: object) -> object:
        operation = "all_gather" if name.startswith("all_gather") else "reduce_scatter"
        seen[operation].append(all(tracehook.is_symmetric(buffer, group) for buffer in (output, input)))
        return call(output, input, group=group, **more)

    setattr(dist, name, ask)


# The second names are those of torch before 2.13.
for names in (("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")):
    watched(next(name for name in names if hasattr(dist, name)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.zeros(2, 16, dtype=torch.long).to(device)
windows, segments = [], []
for _ in range(STEPS):
    model(tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(sum(row["windows"] for row in tracehook.status().get("windows", [])))
    segments.append(sum(row["segments"] for row in tracehook.status().get("pools", [])))
tell(changed=changed, windows=windows, segments=segments, seen=seen)
del model, optimizer
dist.destroy_process_group()

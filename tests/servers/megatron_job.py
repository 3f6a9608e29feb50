"""Megatron's own buffers of parameters and gradients, on tracehook's memory. Argument: the case, a function."""

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any

import stand_ins
import torch
import torch.distributed as dist
from server import MB, RANK, WORLD, tell
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(stand_ins.FETCHED))

import megatron.core.nccl_allocator as allocator  # Megatron imports it by this name
from megatron.core.distributed import param_and_grad_buffer as theirs
from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig

import tracehook


def summed(tensor: torch.Tensor, group: Any) -> float:
    """Fill a tensor with rank + 1, sum it over the ranks, and return an element: 3.0 if all is well."""
    tensor.copy_(torch.full(tensor.shape, RANK + 1.0))
    dist.all_reduce(tensor, group=group)
    return float(tensor[0].cpu())


def buffers() -> None:
    """Make the buffers as its DistributedDataParallel does, reduce the gradients, gather the parameters."""
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, nccl_ub=True)
    params = [torch.nn.Parameter(torch.zeros(MB, device="cuda")) for _ in range(2)]
    names = {param: f"layer {index}" for index, param in enumerate(params)}
    alone = [dist.new_group([rank]) for rank in range(WORLD)][RANK]
    groups = SimpleNamespace(tp=alone, dp_cp=dist.group.WORLD)
    kind = torch.float32
    made = theirs._ParamAndGradBuffer(
        config, kind, kind, params, dist.group.WORLD, None, names, 1.0, [0, 1], config.nccl_ub, pg_collection=groups
    )
    (bucket_group,) = theirs.partition_buckets([made])
    half = made.numel // WORLD
    made.grad_data.copy_(torch.full(made.grad_data.shape, RANK + 1.0))
    bucket_group.start_grad_sync()
    made.param_data[RANK * half : (RANK + 1) * half].copy_(torch.full((half,), RANK + 5.0))
    bucket_group.start_param_sync()
    tell(
        symmetric=[tracehook.is_symmetric(tensor) for tensor in (made.grad_data, made.param_data)],
        reduced=float(made.grad_data[RANK * half].cpu()),
        gathered=[float(made.param_data[rank * half].cpu()) for rank in range(WORLD)],
    )


def several_groups() -> None:
    """One context for several groups, and one pool that is registered with each of them later."""
    other = dist.new_group(list(range(WORLD)))
    groups = [dist.group.WORLD, other]
    allocator.init()
    pool = allocator.create_nccl_mem_pool(symmetric=True)
    with allocator.MultiGroupMemPoolAllocator(pool, groups):
        first = torch.empty(MB, device="cuda")
    with allocator.MemPoolAllocatorWithoutRegistration(pool):
        later = [torch.empty(size, device="cuda") for size in (MB // 8, 8 * MB)]
    seen = {"unregistered": [tracehook.is_symmetric(tensor, group) for tensor in later for group in groups]}
    for group in groups:
        allocator.register_mem_pool(pool, group)
        allocator.register_mem_pool(pool, group)
    allocator.deregister_mem_pool(pool, other)
    seen["registered"] = [tracehook.is_symmetric(tensor, group) for tensor in (first, *later) for group in groups]
    tell(seen=seen, sums=[summed(tensor, group) for tensor in (first, *later) for group in groups])
    with allocator.nccl_mem(pool, enabled=False):
        tell(disabled=tracehook.is_symmetric(torch.empty(MB, device="cuda")))
    dist.destroy_process_group(other)


def sharded(later: bool = False) -> None:
    """Shard a model with Megatron-FSDP, and take a step with it; register its buffers as they are made, or `later`."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import fully_shard

    module: Any = sys.modules[fully_shard.__module__]
    config = module.DistributedDataParallelConfig
    module.DistributedDataParallelConfig = functools.partial(config, fsdp_manual_registration=later)
    mesh = init_device_mesh("cuda", (WORLD,), mesh_dim_names=("dp",))
    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(2))).cuda()
    model = module.fully_shard_model(
        layers, device_mesh=mesh, dp_shard_dim="dp", fsdp_unit_modules=[torch.nn.Linear], nccl_ub=True
    )
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    tell(windows=[row["windows"] for row in tracehook.status()["windows"]])
    if later:
        model.param_and_grad_buffer.manual_buffer_registration()
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
        tell(registered=[row["windows"] for row in tracehook.status()["windows"]])


def sharded_later() -> None:
    """Register by the function that Megatron-FSDP has for that."""
    sharded(later=True)


def unequal() -> None:
    """The last rank's buffer is larger: the context raises on both."""
    allocator.init()
    pool = allocator.create_nccl_mem_pool()
    try:
        with allocator.nccl_mem(pool, group=dist.group.WORLD):
            torch.empty((32 + 32 * RANK) * MB // 4, device="cuda")
    except tracehook.RegistrationError as problem:
        tell(raised=f"{type(problem).__name__}: {problem}")


torch.cuda.set_device(RANK)
store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, device_id=torch.device("cuda", RANK))
globals()[sys.argv[1]]()
tell(compiled=stand_ins.compiled)
dist.destroy_process_group()

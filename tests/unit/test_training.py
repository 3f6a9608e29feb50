"""What the drop-ins for training say where they cannot help. What they do: tests/rehearsal/test_training.py."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import tracehook


@pytest.mark.parametrize("name", ["set_custom_all_gather", "set_custom_reduce_scatter"])
def test_apply_names_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A torch that takes no custom collectives is named with its version, whatever the model."""
    monkeypatch.delattr(FSDPModule, name)
    with pytest.raises(RuntimeError, match=rf"torch {torch.__version__.split('+')[0]}.* has no .*: use torch 2.11 or"):
        tracehook.fsdp.apply(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", [tracehook.fsdp.AllGather, tracehook.fsdp.ReduceScatter])
def test_buffers_elsewhere_are_ordinary(kind: type[tracehook.fsdp.AllGather]) -> None:
    """On another device than CUDA, and without a group, allocate gives a tensor of the shape and type."""
    made = kind().allocate((3, 2), dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (made.shape, made.dtype, made.device.type) == ((3, 2), torch.bfloat16, "cpu")


def test_ddp_that_keeps_its_first_buckets() -> None:
    """With find_unused_parameters nothing would be made later: refused, with what to do instead."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=True)
        with pytest.raises(ValueError, match=r"keeps its first buckets: make it inside of `with tracehook\.symmetric"):
            tracehook.ddp.apply(model)
    finally:
        dist.destroy_process_group()


def test_ddp_a_copy_waits_for_its_own_buckets() -> None:
    """A model is copied and pickled as without tracehook; each copy makes its buckets, and no hook stays on any."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(2, 2))
        tracehook.ddp.apply(model)
        copies = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        tracehook.ddp.apply(copies[1])
        for each in copies[::-1]:
            for _ in range(3):
                each(torch.ones(1, 2)).sum().backward()
            assert each._has_rebuilt_buckets
            assert not each._forward_pre_hooks
    finally:
        dist.destroy_process_group()


def test_ddp_a_second_call_does_nothing() -> None:
    """Only one thing waits for the forward that makes the lasting buckets, and then it goes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(2, 2))
        for _ in range(2):
            tracehook.ddp.apply(model)
        assert len(model._forward_pre_hooks) == 1
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        assert not model._forward_pre_hooks
    finally:
        dist.destroy_process_group()

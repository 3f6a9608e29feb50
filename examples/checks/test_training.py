"""Checks of a training step that need no GPU: `pytest examples/checks`, with tracehook installed."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.rehearse(devices=4)
def test_all_ranks_make_the_same_collectives() -> None:
    """A rank that makes another call, or none, fails this test by name."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
    for _ in range(3):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()


@pytest.mark.rehearse(devices=4)
@pytest.mark.parametrize("width", [1, 2])
def test_tensor_parallel_groups_sum_their_own_ranks(width: int) -> None:
    """Collectives move and add real data."""
    groups = [dist.new_group(list(range(first, first + width))) for first in range(0, 4, width)]
    rank = dist.get_rank()
    tensor = torch.tensor([float(rank)]).cuda()
    dist.all_reduce(tensor, group=groups[rank // width])
    first = rank // width * width
    assert tensor.cpu().item() == sum(range(first, first + width))

"""The operators for torch.compile keep torch's rules for operators: schema, shapes without data, tracing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tracehook.symmetric_memory import compiled


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    """Make the default group of this process alone, and another one; they have no NCCL, so all memory is ordinary."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group([0])
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("operator", "arguments", "last"),
    [
        (compiled._all_reduce, (), ("SUM",)),
        (compiled._all_gather_into_tensor, ([3],), ()),
        (compiled._all_gather_into_tensor, (None,), ()),
        (compiled._reduce_scatter_tensor, ([3],), ("MAX",)),
        (compiled._reduce_scatter_tensor, (None,), ("SUM",)),
    ],
)
def test_an_operator_keeps_the_rules(group, operator, arguments, last):
    """Torch's own check: it changes no input, returns no view of one, and says shapes as they come."""
    for given, name in ((torch.randn(3, 4), ""), (torch.randn(4, 3).t(), group.group_name)):
        torch.library.opcheck(operator.default, (given, *arguments, name, *last))


def test_empty_says_its_shape(group):
    """The same for empty, whose values nobody compares."""
    arguments = ([3, 4], torch.bfloat16, torch.device("cpu"), None, group.group_name, "all_reduce", True)
    operator: Any = compiled._empty
    torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))

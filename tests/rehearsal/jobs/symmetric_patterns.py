"""tracehook.empty, all_gather_into_tensor, all_gather and reduce_scatter_tensor, with equal and unequal sizes."""

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, start, tell
from symmetric_tools import caught, works

WIDTH = 4


def rows(lengths: list[int], first: float = 0) -> torch.Tensor:
    """Return this rank's rows: each holds its number in the whole."""
    begin = sum(lengths[:RANK])
    values = torch.arange(begin, begin + lengths[RANK], dtype=torch.float32) + first
    return values[:, None].expand(-1, WIDTH).contiguous().to(device)


def listed(tensor: torch.Tensor) -> list[float]:
    """Return the first column, if all are equal."""
    values = tensor.cpu()
    assert values.shape[1:] == (WIDTH,), values.shape
    assert bool((values == values[:, :1]).all()), values
    return list(values[:, 0].tolist())


def gathered(group: dist.ProcessGroup | None, lengths: list[int], given: bool) -> dict[str, object]:
    """Return both forms of all-gather of rows."""
    sizes = lengths if given else None
    whole = tracehook.all_gather_into_tensor(rows(lengths), group, sizes)
    parts = tracehook.all_gather(rows(lengths), group, sizes)
    return {
        "whole": listed(whole),
        "parts": [listed(part) for part in parts],
        "symmetric": [tracehook.is_symmetric(one, group) for one in (whole, *parts) if one.numel()],
    }


def scattered(
    group: dist.ProcessGroup | None, lengths: list[int], given: bool, op: dist.ReduceOp | None = None
) -> dict[str, object]:
    """Return this rank's part of the sum: rank r gives row i + r."""
    whole = (torch.arange(sum(lengths), dtype=torch.float32) + RANK)[:, None].expand(-1, WIDTH).contiguous().to(device)
    part = tracehook.reduce_scatter_tensor(whole, group, lengths if given else None, op)
    return {"part": listed(part), "symmetric": tracehook.is_symmetric(part, group) if part.numel() else None}


device = start()
group = dist.new_group(list(range(WORLD)), device_id=device)
for name, lengths, given in (
    ("default", [2] * WORLD, False),
    ("equal", [3] * WORLD, True),
    ("unequal", [1 + 2 * rank for rank in range(WORLD)], True),
    ("with_none", [3] + [0] * (WORLD - 1), True),
):
    for about, where in (("world", None), ("group", group)):
        tell(**{f"gathered_{name}_{about}": gathered(where, lengths, given)})
        tell(**{f"scattered_{name}_{about}": scattered(where, lengths, given)})
tell(maximum=scattered(None, [2] * WORLD, True, dist.ReduceOp.MAX))
plain = tracehook.empty(5, 7, dtype=torch.bfloat16)
tell(empty=[list(plain.shape), str(plain.dtype), str(plain.device), tracehook.is_symmetric(plain)])
tell(empty_unequal=tracehook.is_symmetric(tracehook.empty(RANK + 1, 7, sizes=[1, 2])))
given = torch.full((2, 3), RANK + 1.0).to(device)
reduced, scalar = tracehook.all_reduce(given, group), tracehook.all_reduce(torch.tensor(RANK + 1.0).to(device))
tell(reduced=[reduced.tolist(), given.cpu().unique().tolist(), tracehook.is_symmetric(reduced, group), scalar.item()])
tell(
    complaints=[
        caught(lambda: tracehook.all_gather_into_tensor(rows([2] * WORLD), sizes=[2] * (WORLD + 1)))[1],
        caught(lambda: tracehook.all_gather_into_tensor(rows([2] * WORLD), sizes=[5, 6]))[1],
        caught(lambda: tracehook.reduce_scatter_tensor(rows([2 * WORLD + 1] * WORLD)))[1],
        caught(lambda: tracehook.reduce_scatter_tensor(rows([2] * WORLD), sizes=[5, 6]))[1],
    ]
)
tell(right=works())
torch.cuda.synchronize()
dist.destroy_process_group()

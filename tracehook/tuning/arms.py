"""The two things that are compared: a collective on plain memory, and the same on symmetric memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor

import tracehook
from tracehook.hook.groups import all_gather_single, reduce_scatter_single

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
_SPOT = 1 << 12  # elements that are looked at, at each end of a buffer


class Arm:
    """Buffers of one size in one kind of memory, and the calls on them."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        nbytes: int,
        dtype: torch.dtype,
        scope: AbstractContextManager[object],
    ) -> None:
        """Make the buffers inside `scope`: one of `nbytes` bytes, and one smaller by the number of ranks."""
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        # One part a rank: also of a number of ranks that is no power of two.
        part = max(nbytes // (self.ranks * dtype.itemsize), 1)
        with scope:
            self.large = torch.empty(part * self.ranks, dtype=dtype, device="cuda")
            self.small = torch.empty(part, dtype=dtype, device="cuda")

    def require(self, *, symmetric: bool) -> None:
        """Raise RuntimeError unless the memory is of that kind."""
        for buffer in (self.large, self.small):
            told = tracehook.explain(buffer, self.group)
            if told.symmetric != symmetric:
                raise RuntimeError(f"a buffer is {'not ' if symmetric else ''}symmetric: {told.text}")

    def prepare(self) -> None:
        """Do nothing: the buffers are what differs."""

    def call(self, operation: str) -> None:
        """Call the collective on the current stream."""
        match operation:
            case "all_reduce":
                dist.all_reduce(self.large, group=self.group)
            case "all_gather":
                all_gather_single(self.large, self.small, self.group)
            case _:
                reduce_scatter_single(self.small, self.large, dist.ReduceOp.SUM, self.group)

    def check(self, operation: str, wait: Callable[[], None]) -> str:
        """Call the collective on small integers, and compare both ends of each rank's part; return what is wrong.

        `wait` returns when the device has done what is on the current stream.
        """
        parts = list(self.large.split(self.small.numel()))
        gathers = operation == "all_gather"
        for number, part in enumerate([self.small] if gathers else parts):
            for spot in spots(part):
                write(spot, self._value(self.rank, self.rank if gathers else number))
        self.call(operation)
        wait()
        results = {self.rank: self.small} if operation == "reduce_scatter" else dict(enumerate(parts))
        if gathers:
            wanted = [self._value(number, number) for number in range(self.ranks)]
        else:
            wanted = [sum(self._value(rank, number) for rank in range(self.ranks)) for number in range(self.ranks)]
        return check_parts(results, wanted)

    def clear(self, operation: str) -> None:
        """Write zeros, so that sums stay zero however often they are made."""
        self.large.zero_()
        self.small.zero_()
        self.call(operation)

    @staticmethod
    def _value(rank: int, part: int) -> int:
        return rank % 2 + part % 3  # the sum over 80 ranks still has no rounding in bfloat16


def check_parts(parts: Mapping[int, Tensor], wanted: Sequence[int]) -> str:
    """Compare both ends of each part with the value that it shall have everywhere; return what is wrong."""
    for number, part in parts.items():
        for spot in spots(part):
            seen = spot.cpu().double()
            if not bool((seen == wanted[number]).all()):
                return f"wrong results: part {number} has {seen.min():g} to {seen.max():g}, expected {wanted[number]}"
    return ""


def spots(tensor: Tensor) -> Iterator[Tensor]:
    """Yield both ends."""
    yield tensor[:_SPOT]
    yield tensor[-_SPOT:]


def write(spot: Tensor, value: int) -> None:
    """Fill it, without a kernel of the device."""
    spot.copy_(torch.full(spot.shape, value, dtype=spot.dtype))

"""Calls on memory that is registered with the communicator, and the same calls on the same memory without."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from tracehook import _core
from tracehook.hook import registration
from tracehook.hook.groups import all_gather_single
from tracehook.log.tables import MEMORIES
from tracehook.nccl import effect
from tracehook.tuning.arms import check_parts, spots, write

OPERATIONS = tuple(effect.PAYING)


class RegisteredArm:
    """The calls, all of them on registered memory or none. The arms of one size share their buffers."""

    def __init__(self, group: dist.ProcessGroup, buffers: tuple[Tensor, Tensor], *, registered: bool) -> None:
        """`buffers`: two of one size, the second one for what a call reads; made by :func:`buffers_of`."""
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.got, self.given = buffers
        self._registered = registered

    def prepare(self) -> None:
        """Have the next calls use the kind of memory of this arm. All ranks do it before the same call."""
        registration.all_calls(_core, self._registered)

    def call(self, operation: str) -> None:
        """Call it on the current stream."""
        match operation:
            case "all_gather":
                all_gather_single(self.got, self.given[: len(self.given) // self.ranks], self.group)
            case "all_to_all":
                dist.all_to_all_single(self.got, self.given, group=self.group)
            case _:
                to, source = (dist.get_global_rank(self.group, self._neighbour(step)) for step in (1, -1))
                send = dist.P2POp(dist.isend, self.given, to, self.group)
                for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, self.got, source, self.group)]):
                    work.wait()

    def check(self, operation: str, wait: Callable[[], None]) -> str:
        """Call it on small integers, and compare both ends of each part; return what is wrong."""
        self.prepare()
        parts = 1 if operation == "send" else self.ranks
        for number, part in enumerate(self.given.chunk(parts)):
            for spot in spots(part):
                write(spot, _value(self.rank, number))
        self.call(operation)
        wait()
        if operation == "send":
            wanted = [_value(self._neighbour(-1), 0)]
        else:
            wanted = [_value(source, 0 if operation == "all_gather" else self.rank) for source in range(self.ranks)]
        return check_parts(dict(enumerate(self.got.chunk(parts))), wanted)

    def clear(self, operation: str) -> None:
        """Write zeros, and have the buffers registered: a capture must find that done."""
        self.got.zero_()
        self.given.zero_()
        self.prepare()
        self.call(operation)

    def _neighbour(self, step: int) -> int:
        return int((self.rank + step) % self.ranks)


def buffers_of(nbytes: int, ranks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return two buffers of as many parts as there are ranks.

    Raises:
        RuntimeError: NCCL can register no memory of this kind with effect.

    """
    elements = max(nbytes // (ranks * dtype.itemsize), 1) * ranks
    made = torch.empty(elements, dtype=dtype, device="cuda"), torch.empty(elements, dtype=dtype, device="cuda")
    for buffer in made:
        segment = _core.segment_at(buffer.data_ptr())
        memory = MEMORIES[segment.memory] if segment is not None else "unknown"
        if memory != effect.SHAREABLE:
            raise RuntimeError(f"a buffer of {nbytes} bytes lies in {memory} memory, of which NCCL can use none")
    return made


def _value(rank: int, part: int) -> int:
    return rank % 2 + part % 3 + 1

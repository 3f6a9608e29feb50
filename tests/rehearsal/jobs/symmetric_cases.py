"""One way after the other in which ranks come apart over symmetric memory; also run on real devices.

Each case tells `error` (class and text, or null), `right` (whether an ordinary collective works afterwards) and what
else its test asks about.
"""

import sys

import torch
import torch.distributed as dist
import tracehook
from tracehook.symmetric_memory import state

from common import MB, RANK, filled, leave, start, tell
from symmetric_tools import (
    SIZE,
    attempt,
    captured,
    caught,
    empty,
    meet,
    one_after_the_other,
    reached,
    reduced,
    refill,
    symmetric,
    two_in_one_scope,
    windows,
    works,
)


def swapped(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Fill both; return the one that this rank takes, which is another one on rank 0."""
    mine, other = (first, second) if RANK == 0 else (second, first)
    refill(other, 100 * (RANK + 1))
    return refill(mine, RANK + 1)


def swapped_equal() -> None:
    """The ranks allocate two equal tensors in opposite order."""
    mine = swapped(*two_in_one_scope(0, 0))
    tell(windows=windows())
    tell(sum=attempt(lambda: reduced(mine)))


def unequal_sizes() -> None:
    """One tensor, of another size on each rank."""
    attempt(lambda: symmetric(1, SIZE if RANK == 0 else 2 * SIZE))


def missing_rank() -> None:
    """Only rank 0 enters the scope; the others come when it has given up."""
    one_after_the_other(RANK == 0, lambda: symmetric(1))
    tell(windows=windows())


def missing_leader() -> None:
    """All but rank 0 enter the scope."""
    one_after_the_other(RANK != 0, lambda: symmetric(1))
    tell(windows=windows())


def mixed_placement() -> None:
    """Ordinary memory was used before; then rank 0 reduces a symmetric tensor, the others an ordinary one."""
    inside, outside = symmetric(RANK + 1), filled(RANK + 1, SIZE, device)
    reduced(outside)
    if RANK == 0:
        attempt(lambda: reduced(inside))
    else:
        calls = reached()
        dist.all_reduce(outside)  # enqueued: this rank has nothing to ask
        tell(reached=[now - then for now, then in zip(reached(), calls, strict=True)])
    meet()


def unequal_counts() -> None:
    """Each rank reduces another number of elements of one tensor."""
    tensor = symmetric(RANK + 1)
    attempt(lambda: dist.all_reduce(tensor[: 64 - 4 * RANK]))
    meet()


def other_type() -> None:
    """Each rank reduces elements of another type, of as many bytes in all."""
    tensor = symmetric(RANK + 1)
    attempt(lambda: dist.all_reduce(tensor.view((torch.float32, torch.float16)[RANK])))
    meet()


def other_reduction() -> None:
    """Each rank reduces by another operation."""
    tensor = symmetric(RANK + 1)
    attempt(lambda: dist.all_reduce(tensor, (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[RANK]))
    meet()


def swapped_when_known() -> None:
    """Both tensors were used alike before; then each rank reduces another one."""
    first, second = two_in_one_scope(RANK + 1, RANK + 1)
    tell(before=[reduced(first), reduced(second)])
    tell(agreed=caught(tracehook.sync)[1])
    mine = swapped(first, second)
    dist.all_reduce(mine)
    torch.cuda.synchronize()
    tell(wrong=float(mine[0].cpu()))
    tell(found=caught(tracehook.sync)[1], windows=windows())


def swapped_unseen() -> None:
    """With SYMM_REGISTER_GUARD=off: the swap, and what it makes of the sum."""
    mine = swapped(*two_in_one_scope(0, 0))
    dist.all_reduce(mine)
    torch.cuda.synchronize()
    tell(wrong=[float(mine[0].cpu()), float(mine[-1].cpu())])


def trim_alone() -> None:
    """Only rank 0 trims; the others come when it has given up."""
    kept, unused = symmetric(RANK + 1), symmetric(RANK + 1)
    with tracehook.symmetric():
        small = torch.empty(777, device=device)  # whose segment has room
    del unused
    one_after_the_other(RANK == 0, tracehook.trim)
    tell(windows=windows(), sum=reduced(kept))
    with tracehook.symmetric():
        again = torch.empty_like(small)
    tell(again=reduced(again.copy_(torch.full(again.shape, RANK + 1.0))))
    del small, again
    tell(given_back=tracehook.trim(), left=windows())


def trim_different() -> None:
    """Each rank has another unused segment: none leaves."""
    first, second = symmetric(1), symmetric(2)
    kept = second if RANK == 0 else first
    del first, second
    attempt(tracehook.trim)
    tell(windows=windows())
    del kept
    tell(given_back=tracehook.trim(), left=windows())


def capture() -> None:
    """A scope inside a capture that needs new memory."""
    source = filled(RANK + 1, SIZE, device)
    refill(symmetric(0), 1)  # a window elsewhere, so that placements are looked at
    dist.all_reduce(filled(1, 1, device))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def record() -> torch.Tensor:
        with torch.cuda.graph(graph):
            with tracehook.symmetric():
                out = empty()
            out.copy_(source)
            dist.all_reduce(out)
        return out

    out = attempt(record)
    assert out is not None
    reason = tracehook.explain(out).reason
    graph.replay()
    torch.cuda.synchronize()
    first = float(out[0].cpu())
    before = windows()
    meet()
    tell(reason=reason, sum=first, synced=tracehook.sync(), before=before, after=windows())
    tell(later=tracehook.explain(out).reason)


def graph_replay() -> None:
    """Capture with symmetric memory that has windows already; replay after other allocations and empty_cache."""
    made = captured()
    sums = []
    for round_ in range(3):
        others = [symmetric(-1) for _ in range(2)] + [filled(-1, SIZE, device) for _ in range(2)]
        torch.cuda.synchronize()
        del others
        torch.cuda.empty_cache()
        tracehook.trim()
        refill(made.source, (RANK + 1) * (round_ + 1))
        made.graph.replay()
        torch.cuda.synchronize()
        sums.append(float(made.result[0].cpu()))
    tell(reason=made.reason, sums=sums, pinned=_pinned())
    del made
    tracehook.release_graphs()
    torch.cuda.synchronize()
    tell(unpinned=_pinned(), given_back=tracehook.trim())


def _pinned() -> int:
    return sum(row["pinned"] for row in tracehook.status()["windows"])


def expandable() -> None:
    """With expandable segments on, symmetric memory is not in one; other memory is, and is not symmetric."""
    inside, outside = symmetric(RANK + 1), filled(RANK + 1, SIZE, device)
    tell(reason=tracehook.explain(outside).reason, inside=tracehook.is_symmetric(inside))
    tell(sum=attempt(lambda: reduced(inside)), plain=reduced(outside))


def freed_while_registered() -> None:
    """Torch gives the segment back while it has a window; an equal request gets it again."""
    tensor = symmetric(RANK + 1)
    address = tensor.data_ptr()
    before = windows()
    del tensor
    memory = state.Switch.memory
    assert memory is not None
    memory._pools.release_cache(device.index, {f"group {dist.group.WORLD.group_name}"})
    retired = tracehook.status()["pools"][0]["retired_bytes"]
    again = symmetric(RANK + 1)
    tell(retired=retired, same=again.data_ptr() == address, before=before, after=windows())
    tell(sum=attempt(lambda: reduced(again)))


def abort_with_windows() -> None:
    """Abort with live windows, then go on allocating and freeing."""
    tensor = symmetric(RANK + 1)
    reduced(tensor)
    torch.cuda.synchronize()
    meet()
    attempt(lambda: dist.group.WORLD.abort())
    tell(symmetric=tracehook.is_symmetric(tensor), windows=windows())
    more = filled(1, SIZE, device)
    del tensor, more
    torch.cuda.empty_cache()
    tell(alive=True)


def overrun() -> None:
    """A buffer that begins in a window and ends outside it."""
    tensor = symmetric(RANK + 1)
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr() + MB, device, SIZE * MB)
    over = torch.empty(0, device=device).set_(storage)
    tell(reason=tracehook.explain(over).reason)
    attempt(lambda: dist.all_reduce(over))


device = start(seconds=60)
case = sys.argv[1]
globals()[case]()
if case != "abort_with_windows":
    if "works" in sys.argv[2:]:
        tell(right=works())
    if "leave" in sys.argv[2:]:
        leave()  # when the watch, which may have answered a rank, has said so itself
    torch.cuda.synchronize()
    dist.destroy_process_group()

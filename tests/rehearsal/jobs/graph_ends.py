"""The end of a group whose collectives stand in a CUDA graph, with windows: the recipe of docs/symmetric.md first."""

import sys
import time

import torch
import torch.distributed as dist
import tracehook

from common import MB, beside, nccl_calls, start, tell, until
from symmetric_tools import captured, meet, windows

ENDS = ("ncclCommFinalize", "ncclCommDestroy")
SOON = 0.5  # seconds from a call's begin to its wait


def replayed() -> torch.cuda.CUDAGraph:
    """Return a graph of one all-reduce in a window, which was replayed."""
    made = captured()
    made.graph.replay()
    torch.cuda.synchronize()
    tell(sum=float(made.result[0].cpu()), windows=windows())
    return made.graph


def end(how: str = "destroy") -> None:
    """End the group, and tell how long that took."""
    meet()
    begin = time.monotonic()
    if how == "destroy":
        dist.destroy_process_group()
    else:
        dist.group.WORLD.abort()
    tell(seconds=time.monotonic() - begin)


def kept() -> None:
    """The graph lives on; it is released when the group is gone, with all that it used."""
    graph = replayed()
    end()
    graph.reset()
    give_back()


def released() -> None:
    """The graph is released first; nobody calls release_graphs."""
    graph = replayed()
    graph.reset()
    end()
    give_back()


def released_meanwhile() -> None:
    """Another thread releases the graph while the end waits for it."""
    graph = replayed()

    def release() -> None:
        until(lambda: any(map(nccl_calls, ENDS)))  # tracehook waits for the graph before, and gives up
        time.sleep(SOON)
        graph.reset()

    with beside(release):
        end()
    give_back()


def aborted() -> None:
    """The group is aborted while the graph lives."""
    graph = replayed()
    end("abort")
    graph.reset()
    give_back()


def give_back() -> None:
    """Go on without the group: what the graph used may go to the driver, and no call reaches NCCL for it."""
    before = nccl_calls("ncclCommWindowDeregister")
    tracehook.release_graphs()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    more = torch.empty(MB, device=device)
    del more
    tell(late=nccl_calls("ncclCommWindowDeregister") - before, undone=before)


device = start(seconds=60)
globals()[sys.argv[1]]()

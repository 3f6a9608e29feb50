"""The end of a group whose collectives stand in a CUDA graph, with windows: the recipe of docs/symmetric.md first."""

import sys
import threading
import time

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, filled, nccl_calls, start, tell
from symmetric_tools import SIZE, empty, meet, refill, windows

SOON = 2.0  # seconds after which another thread releases the graph: tracehook itself waits less for it


def captured() -> torch.cuda.CUDAGraph:
    """Return a graph of one all-reduce in a window, which was replayed."""
    source = filled(RANK + 1, SIZE, device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with tracehook.symmetric(graph=True):
            warm = empty()
        dist.all_reduce(warm)
        del warm
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with tracehook.symmetric():
            out = empty()
        out.copy_(source)
        dist.all_reduce(out)
        result = torch.empty_like(source)
        result.copy_(out)
        del out
    refill(source, RANK + 1)
    graph.replay()
    torch.cuda.synchronize()
    tell(sum=float(result[0].cpu()), windows=windows())
    return graph


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
    graph = captured()
    end()
    graph.reset()
    give_back()


def released() -> None:
    """The graph is released first; nobody calls release_graphs."""
    graph = captured()
    graph.reset()
    end()
    give_back()


def released_meanwhile() -> None:
    """Another thread releases the graph while the end waits for it."""
    graph = captured()

    def release() -> None:
        time.sleep(SOON)
        graph.reset()

    thread = threading.Thread(target=release)
    thread.start()
    end()
    thread.join()
    give_back()


def aborted() -> None:
    """The group is aborted while the graph lives."""
    graph = captured()
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

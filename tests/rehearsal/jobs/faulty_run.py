"""Does what the program of a seed says on this rank. Arguments: the seed, of how many ranks at most, and `more`."""

import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from common import RANK, start, started

sys.path.append(str(Path(__file__).parents[2]))
from support.faulty import FAULTS, MORE_FAULTS, Act, draw

PROGRAM = draw(int(sys.argv[1]), int(sys.argv[2]), MORE_FAULTS if sys.argv[3:] else FAULTS)
device = start(seconds=600)
groups = {"world": dist.group.WORLD}
for name, each in PROGRAM.groups.items():
    if name != "world":
        for number, ranks in enumerate(each):
            made = dist.new_group(ranks, group_desc=f"{name}_{number}", device_id=device)
            if RANK in ranks:
                groups[name] = made
streams = {"main": torch.cuda.current_stream(), "side": torch.cuda.Stream()}
tensors = [torch.ones(1024 * size, device=device) for size in range(8)]
FUNCTIONS = {"send": dist.isend, "recv": dist.irecv}
started()


def call(act: Act) -> None:
    """Post one call."""
    if act.kind == "all_reduce":
        dist.all_reduce(tensors[act.size], group=groups[act.group])
    elif act.kind == "send":
        dist.send(tensors[act.size], act.peer, group=groups[act.group])
    elif act.kind == "recv":
        dist.recv(tensors[act.size], act.peer, group=groups[act.group])
    else:
        inner = [dist.P2POp(FUNCTIONS[e.kind], tensors[e.size], e.peer, group=groups[e.group]) for e in act.inner]
        for work in dist.batch_isend_irecv(inner):
            work.wait()


for act in PROGRAM.acts[RANK]:
    match act.kind:
        case "spin":
            threading.Event().wait()
        case "exit":
            sys.exit()
        case "kernel":
            torch.cuda._sleep(1 << 62)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sync":
            torch.cuda.synchronize()
        case "after":
            streams[act.stream].wait_stream(streams[act.group])
        case "make":
            groups["made"] = dist.new_group(list(range(PROGRAM.ranks)), group_desc="made", device_id=device)
        case _:
            with torch.cuda.stream(streams[act.stream]):
                call(act)
threading.Event().wait()  # so that nobody ends before the others

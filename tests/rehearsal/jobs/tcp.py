"""The default group over a store of the kind that torchrun uses."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from common import RANK, WORLD


def connect() -> tuple[torch.device, dist.TCPStore]:
    """Make the default group. Stores of other kinds are polled, so slower, and not all can list their keys."""
    meeting = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    minute = timedelta(seconds=60)
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, WORLD, True, timeout=minute, wait_for_workers=False)
        meeting.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(meeting.get("port")), WORLD, False, timeout=minute)
    device = torch.device("cuda", RANK)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, timeout=minute, device_id=device)
    return device, store

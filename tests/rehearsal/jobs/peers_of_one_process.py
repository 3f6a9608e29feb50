"""Two ranks that are threads of one process make a PeerGroup, and exchange tensors."""

import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg as threaded
from tracehook.errors import PeerError
from tracehook.ipc import PeerGroup

from common import tell


def rank(number: int) -> None:
    """Be one rank."""
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("threaded", rank=number, world_size=2, store=store)
    try:
        with PeerGroup() as peers:
            peers.exchange({1 - number: torch.empty(4, device=device)})
    except PeerError as problem:
        tell(**{f"rank{number}": str(problem)})


torch._C._distributed_c10d._set_thread_isolation_mode(True)
threaded._install_threaded_pg()
store = dist.HashStore()
ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
for one in ranks:
    one.start()
for one in ranks:
    one.join()

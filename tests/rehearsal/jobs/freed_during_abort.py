"""A segment that is freed by one thread while another is in a slow abort of the communicator that holds it."""

import threading

import torch
import torch.distributed as dist

from common import MB, filled, nccl_calls, start, tell

device = start()
kept = filled(1, 24, device)
segment = torch.empty(48 * MB, dtype=torch.uint8, device=device)
doomed = dist.new_group([0])
dist.all_reduce(kept, group=doomed)


def free() -> None:
    global segment
    while nccl_calls("ncclCommAbort") == 0:
        threading.Event().wait(0.001)
    del segment
    torch.cuda.empty_cache()
    tell(freed=True)


thread = threading.Thread(target=free)
thread.start()
doomed._get_backend(device).abort()
thread.join()
dist.all_reduce(kept)
dist.destroy_process_group()

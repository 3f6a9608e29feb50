"""A segment that is freed by one thread while another is in a slow abort of the communicator that holds it."""

import torch
import torch.distributed as dist

from common import MB, beside, filled, nccl_calls, start, tell, until

device = start()
kept = filled(1, 24, device)
segment = torch.empty(48 * MB, dtype=torch.uint8, device=device)
doomed = dist.new_group([0])
dist.all_reduce(kept, group=doomed)


def free() -> None:
    global segment
    until(lambda: nccl_calls("ncclCommAbort") > 0)
    del segment
    torch.cuda.empty_cache()
    tell(freed=True)


with beside(free):
    doomed._get_backend(device).abort()
dist.all_reduce(kept)
dist.destroy_process_group()

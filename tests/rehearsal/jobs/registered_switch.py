"""Calls that gain by registered memory, with tracehook on, off and on again."""

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, filled, start, tell


def held() -> int:
    return sum(row["held"] for row in tracehook.status()["communicators"])


device = start()
part, whole = filled(RANK + 1, 16, device), torch.zeros(WORLD * 16 * MB // 4, device=device)
dist.all_gather_into_tensor(whole, part)
tell(on=held())
torch.cuda.synchronize()
tracehook.disable()
tell(off=held())
dist.all_gather_into_tensor(whole, part)
tell(still_off=held())
tracehook.enable()
dist.all_gather_into_tensor(whole, part)
tell(on_again=held(), sums=whole.cpu()[:: 16 * MB // 4].tolist())
dist.destroy_process_group()

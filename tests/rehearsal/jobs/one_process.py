"""One process gathers between its own two devices, as torch.nn.DataParallel does, in calls that gain elsewhere."""

import torch
from torch.cuda import nccl

from common import MB, filled, tell

parts = [filled(device + 1, 16, f"cuda:{device}") for device in range(2)]
wholes = [torch.empty(2 * 16 * MB // 4, device=part.device) for part in parts]
nccl.all_gather(parts, wholes)
tell(gathered=[whole.cpu()[:: 16 * MB // 4].tolist() for whole in wholes])

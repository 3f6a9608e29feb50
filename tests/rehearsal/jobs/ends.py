"""Ways to end with live groups and live segments."""

import os
import sys
import threading

import torch
import torch.distributed as dist

from common import filled, start

device = start()
kept = filled(1, 24, device)
dist.all_reduce(kept)
torch.cuda.synchronize()

match sys.argv[1]:
    case "exception":
        raise ValueError("on purpose")
    case "os._exit":
        os._exit(4)
    case "thread":
        threading.Thread(target=lambda: dist.all_reduce(kept)).start()
    case "abort":
        dist.group.WORLD.abort()
        later = filled(1, 48, device)
        del kept, later
        torch.cuda.empty_cache()
        dist.destroy_process_group()

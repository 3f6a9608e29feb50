"""A program that joins all threads which it finds, profiles all that it starts, and uses the whole of tracehook."""

import threading

import torch
import torch.distributed as dist
import tracehook

from common import start, tell

seen: set[str] = set()
threading.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
device = start()
with tracehook.symmetric():
    y = torch.ones(1 << 20, device=device)
dist.all_reduce(y)
torch.cuda.synchronize()
mine: list[int] = []
for number in range(3):
    threading.Thread(target=mine.append, args=(number,)).start()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
tell(mine=sorted(mine), count=threading.active_count(), followed=sorted(name for name in seen if "/tracehook/" in name))
del y
dist.destroy_process_group()
tell(count_at_the_end=threading.active_count())

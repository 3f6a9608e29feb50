"""tracehook enabled in the middle of a job, beside what exists already. Argument: the case, and what it takes."""

import ctypes
import os
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

from common import RANK, WORLD, filled, made_by_hand, must, nccl_calls, raised, start, tell


def again_and_again() -> None:
    """Groups and segments first, tracehook afterwards: enabled, disabled, enabled again."""
    device = start()
    tensors = [filled(RANK + 1, size, device) for size in (24, 48, 2)]
    dist.new_group([RANK])
    whole = dist.new_group(list(range(WORLD)))
    dist.all_reduce(tensors[0])
    dist.all_reduce(tensors[1], group=whole)
    split = dist.split_group(split_ranks=[list(range(WORLD))])
    dist.all_reduce(tensors[2], group=split)

    import tracehook  # only now: that is the point

    status = tracehook.status
    tell(before=status()["state"], calls_before=nccl_calls("ncclCommRegister"))
    tracehook.enable()
    tell(enabled=status(), live=torch.cuda.memory_stats()["segment.all.current"])
    dist.all_reduce(tensors[0])
    tensors.append(filled(1, 64, device))
    tell(grown=status())
    tracehook.disable()
    tracehook.disable()
    tell(disabled=status(), made=nccl_calls("ncclCommRegister"), undone=nccl_calls("ncclCommDeregister"))
    tensors.append(filled(1, 96, device))
    del tensors[0]
    torch.cuda.empty_cache()
    dist.all_reduce(tensors[0])
    tell(while_off=status())
    tracehook.enable()
    tracehook.enable()
    tell(again=status(), live_again=torch.cuda.memory_stats()["segment.all.current"])
    tensors.clear()
    torch.cuda.empty_cache()
    dist.all_reduce(filled(1, 1, device))
    dist.barrier()
    dist.destroy_process_group()
    tell(end=status())


def after_an_abort() -> None:
    """One group was aborted and another lives."""
    import tracehook

    device = start()
    tensor = filled(1, 24, device)
    dist.all_reduce(tensor)
    doomed = dist.new_group([0])
    dist.all_reduce(tensor, group=doomed)
    doomed._get_backend(device).abort()
    tracehook.enable()
    tell(status=tracehook.status())
    dist.all_reduce(tensor)
    dist.destroy_process_group()


def elsewhere(kind: str) -> None:
    """The current device is not the one of the group."""
    import tracehook

    torch.cuda.set_device(1)
    bound: dict[str, Any] = {"device_id": torch.device("cuda", 1)} if kind == "bound" else {}
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, **bound)
    tensors = [filled(1, 24, "cuda:1")]
    dist.all_reduce(tensors[0])
    if kind == "both":
        tensors.append(filled(1, 24, "cuda:0"))
        dist.all_reduce(tensors[1])
    else:
        tensors.append(torch.empty(1 << 25, device="cuda:0"))
    torch.cuda.set_device(0)
    tracehook.enable()
    tell(status=tracehook.status())
    dist.all_reduce(tensors[0])
    dist.destroy_process_group()


def by_hand() -> None:
    """Communicators of ctypes, as pynccl's: one from before tracehook was enabled, and attached, one from after."""
    import tracehook

    not_enabled = raised(tracehook.attach_communicator, 1234)
    torch.cuda.set_device(0)
    nccl, communicator = made_by_hand()
    tracehook.enable()
    tensors = [filled(RANK + 1, 24, "cuda:0"), filled(1, 24, "cuda:1")]
    tell(errors={"not_enabled": not_enabled, "null": raised(tracehook.attach_communicator, 0)})
    first = tracehook.attach_communicator(communicator.value or 0, name="mine")
    second = tracehook.attach_communicator(communicator.value or 0, name="mine")
    tell(first=first, second=second, status=tracehook.status())
    tensors.append(torch.empty(1 << 24, device="cuda:0"))
    tell(grown=tracehook.status())
    tensors.pop()
    torch.cuda.empty_cache()
    tell(shrunk=tracehook.status())
    count = ctypes.c_size_t(tensors[0].numel())
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    pointer = ctypes.c_void_p(tensors[0].data_ptr())
    must(nccl.ncclAllReduce(pointer, pointer, count, 7, 0, communicator, stream))
    torch.cuda.synchronize()
    gone = tracehook.detach_communicator(communicator.value or 0)
    again = tracehook.detach_communicator(communicator.value or 0)
    tell(gone=gone, again=again, detached=tracehook.status()["communicators"])
    must(nccl.ncclCommDestroy(communicator))
    _, seen = made_by_hand()
    tell(needless=tracehook.attach_communicator(seen.value or 0), known=tracehook.status()["communicators"])
    must(nccl.ncclCommDestroy(seen))
    del tensors
    torch.cuda.empty_cache()


def while_cuda_comes_up() -> None:
    """A child, forked before CUDA came up, enables on one thread while another is slowly bringing CUDA up."""
    import tracehook

    tracehook.enable()
    child = os.fork()
    if child:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    initialise, under_way = torch._C._cuda_init, threading.Event()

    def slowly() -> None:
        under_way.set()
        threading.Event().wait(0.5)
        initialise()

    torch._C._cuda_init = slowly
    brings_up = threading.Thread(target=torch.cuda.init, daemon=True)
    brings_up.start()
    under_way.wait()
    enables = threading.Thread(target=tracehook.enable, daemon=True)
    enables.start()
    brings_up.join(20)
    enables.join(20)
    tell(stuck=brings_up.is_alive() or enables.is_alive(), state=tracehook.status()["state"])
    os._exit(0)


case, *more = sys.argv[1:]
globals()[case](*more)

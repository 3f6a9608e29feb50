"""torch.multiprocessing shares CUDA tensors: from this process to a child, and from the child back."""

import torch
import torch.multiprocessing as multiprocessing
import tracehook

from common import filled, tell


def child(given: multiprocessing.Queue, told: multiprocessing.Queue) -> None:
    big, small = given.get(), given.get()
    big.copy_(filled(4, 32, "cuda:0"))
    torch.cuda.synchronize()
    told.put([*big.cpu()[[0, -1]].tolist(), float(small.cpu().sum())])
    told.put(filled(5, 36, "cuda:0"))
    given.get()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    given, told = spawn.Queue(), spawn.Queue()
    process = spawn.Process(target=child, args=(given, told))
    process.start()
    big, small = filled(3, 32, "cuda:0"), torch.ones(1000).to("cuda:0")
    given.put(big)
    given.put(small)
    tell(child=told.get(timeout=60))
    tell(parent=big.cpu()[[0, -1]].tolist())
    back = told.get(timeout=60)
    tell(back=back.cpu()[[0, -1]].tolist(), source=tracehook.status()["memory"]["source"])
    del back
    given.put(None)
    process.join(30)

"""A process that forks again and again while other threads call the emulated NCCL; each child asks it something."""

import ctypes
import os
import threading
import time

from common import nccl_calls, tell

FORKS = 300
LONGEST = 30.0  # seconds that a child may take

nccl = ctypes.CDLL("libnccl.so.2")
is_over = threading.Event()


def call() -> None:
    version = ctypes.c_int()
    while not is_over.is_set():
        nccl.ncclGetVersion(ctypes.byref(version))


def hangs() -> bool:
    """Fork a child that counts calls; tell whether it had to be killed."""
    pid = os.fork()
    if pid == 0:
        nccl_calls()
        os._exit(0)
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return True


threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
tell(hung=sum(hangs() for _ in range(FORKS)))
is_over.set()
for thread in threads:
    thread.join()

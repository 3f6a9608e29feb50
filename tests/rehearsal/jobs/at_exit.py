"""Counts calls into the emulated CUDA and NCCL before and after tracehook's own work at the interpreter's end."""

import atexit
import sys

seen: dict[str, int] = {}


def look(when: str) -> None:
    for name in ("ncclCommRegister", "ncclCommDeregister", "any"):
        seen[f"{when} {name}"] = nccl_calls(name)
    seen[f"{when} runtime"] = calls("any")


def compare() -> None:
    look("after")
    names = [name.removeprefix("after ") for name in seen if name.startswith("after ")]
    tell(made={name: seen[f"after {name}"] - seen[f"before {name}"] for name in names})
    tell(log_threads=[thread.name for thread in threads.living()])


atexit.register(compare)  # the first to be registered is the last to run

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import tracehook  # noqa: E402
from tracehook.log import threads  # noqa: E402

from common import calls, filled, made_by_hand, nccl_calls, start, tell  # noqa: E402

if sys.argv[1] == "group":
    kept = filled(1, 24, start())
    dist.all_reduce(kept)
    torch.cuda.synchronize()
else:
    torch.cuda.set_device(0)
    kept = filled(1, 24, "cuda:0")
    nccl, communicator = made_by_hand()
    tracehook.attach_communicator(communicator.value or 0)
tell(held=[row["held"] for row in tracehook.status()["communicators"]])
atexit.register(look, "before")

"""Why a tensor is, or is not, symmetric: one fact for each reason code. Each rank asks about its own tensors."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, start, tell
from symmetric_tools import SIZE, caught, empty, one_after_the_other, symmetric

answers: dict[str, object] = {}


def ask(name: str, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Tell what explain and is_symmetric say."""
    answer = tracehook.explain(tensor, group)
    answers[name] = [answer.symmetric, answer.reason, answer.text, tracehook.is_symmetric(tensor, group)]


def common() -> None:
    """What needs no special environment."""
    ask("not_enabled", empty())
    inside = symmetric(1)
    ask("symmetric", inside)
    ask("symmetric_view", inside[100:])
    ask("not_cuda", torch.empty(4))
    ask("not_in_pool", empty())
    ask("other_device", torch.empty(4, device=f"cuda:{1 - device.index}"))
    group = dist.new_group(list(range(WORLD)), device_id=device)
    ask("not_registered", inside, group)
    alone = dist.new_group([0], device_id=device)
    ask("no_member", inside, alone)
    storage = torch._C._construct_storage_from_data_pointer(inside.data_ptr() + MB, device, SIZE * MB)
    ask("outside", torch.empty(0, device=device).set_(storage))
    # The scope's exception lets go of what it made, so these are kept beside it.
    kept: list[torch.Tensor] = []

    def make(size: float) -> None:
        with tracehook.symmetric(group):
            kept.append(empty(size))

    caught(lambda: make(SIZE * (2 + RANK)))
    ask("mismatch", kept[-1], group)
    one_after_the_other(RANK == 0, lambda: make(5 * SIZE))
    ask("timeout", kept[-1], group)
    with tracehook.symmetric():
        sized = empty(7 * SIZE)
    ask("symmetric_later", sized)


def ask_path(name: str, tensor: torch.Tensor, group: dist.ProcessGroup | None = None, **call: Any) -> None:
    """Tell which path explain names, and that it says of the tensor what it says without an operation."""
    answer = tracehook.explain(tensor, group, **call)
    same = tuple(answer) == tuple(tracehook.explain(tensor, group))
    answers[name] = [answer.path, answer.path_reason, answer.path_text, same]


def paths() -> None:
    """The path of collectives on tensors in windows, and outside."""
    ask_path("not_enabled", empty(), operation="all_reduce")
    inside, part, ordinary = symmetric(1), symmetric(1), empty()
    half = inside[: inside.numel() // WORLD]
    integers = inside.view(torch.int32)
    ask_path("without_operation", inside)
    ask_path("in_place", inside, operation="all_reduce")
    ask_path("two_windows", inside, operation="all_reduce", other=part)
    ask_path("integers", integers, operation="all_reduce")
    ask_path("gathered_integers", integers, operation="all_gather")
    ask_path("as_integers", inside, operation="all_reduce", dtype=torch.int64)
    ask_path("maximum", inside, operation="all_reduce", reduction="max")
    ask_path("average", inside, operation="all_reduce", reduction="avg")
    ask_path("outside", ordinary, operation="all_reduce")
    ask_path("send_outside", inside, operation="all_reduce", other=ordinary)
    ask_path("large_send_outside", inside, operation="all_gather", other=ordinary[: ordinary.numel() // WORLD])
    ask_path("receive_outside", ordinary[: half.numel()], operation="reduce_scatter", other=inside)
    ask_path("all_to_all", inside, operation="all_to_all", other=part)
    ask_path("not_cuda", torch.empty(4), operation="all_reduce")
    alone = dist.new_group([0], device_id=device)
    ask_path("no_member", inside, alone, operation="all_reduce")
    _, answers["unknown"] = caught(lambda: tracehook.explain(inside, operation="add"))
    _, answers["unknown_on_cpu"] = caught(lambda: tracehook.explain(torch.empty(4), operation="add"))
    answers["shown"] = [repr(tracehook.explain(inside)), repr(tracehook.explain(inside, operation="all_reduce"))]
    copies = dist.ProcessGroupNCCL.Options()
    copies.config.cta_policy = 2
    group = dist.new_group(list(range(WORLD)), device_id=device, pg_options=copies)
    copied = symmetric(1, group=group)
    ask_path("copied", copied, group, operation="all_gather")


def several_hosts() -> None:
    """Ranks that NCCL takes for several hosts."""
    tensor = symmetric(1).fill_(RANK + 1)
    ask_path("several_hosts", tensor, operation="all_reduce")
    dist.all_reduce(tensor)
    answers["sum"] = tensor[0].item()


def too_old() -> None:
    """An NCCL without windows."""
    ask("nccl_too_old", symmetric(1))


if sys.argv[1] == "several_hosts":
    os.environ["NCCL_HOSTID"] = f"host {RANK}"
device = start()
globals()[sys.argv[1]]()
tell(**answers)
torch.cuda.synchronize()
dist.destroy_process_group()

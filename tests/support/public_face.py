"""A program that uses every public name of tracehook, for a type checker: ``make wheel-types``. Nobody runs it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

import tracehook
from tracehook.ipc import PeerError, PeerGroup, PeerLost, PeerTensor, PeerTensorGone, PeerTimeout
from tracehook.policies.base import Answer, Policy, Request


def watch_this_process() -> list[str]:
    """Switch registration on and off, and read what it does."""
    tracehook.enable()
    status: tracehook.Status = tracehook.status()
    lines = [f"{status['state']}, {status['segments']} segments, {status['bytes'] / 2**20:.0f} MiB"]
    lines += [f"{row['key']}: {row['held']} of rank {row['rank']}" for row in status["communicators"]]
    lines += [f"{row['pool']}: {row['bytes']}" for row in status["pools"]]
    lines += [f"{row['group']}: {row['windows']} {row['refused'] or ''}" for row in status["windows"]]
    lines += [f"{row['thread']}: {row['seconds']:.1f}" for row in status["scopes"]]
    tracehook.disable()
    return [*lines, tracehook.__version__]


def communicate(group: dist.ProcessGroup, communicator: int, store: Store) -> Tensor:
    """Make symmetric memory, and call collectives on it."""
    known: bool = tracehook.attach_communicator(communicator, name="mine")
    tracehook.use_store(store)
    tracehook.reserve(1 << 30, group)
    try:
        with tracehook.symmetric(group, operation="all_reduce", nbytes=1 << 20, dtype="bfloat16"):
            tensor = torch.empty(1 << 19, dtype=torch.bfloat16, device="cuda")
    except tracehook.PoolLimitError:
        raise
    except tracehook.RegistrationMismatch as problem:
        raise SystemExit(f"{problem.topic}: {problem}") from problem
    except tracehook.RegistrationTimeout as problem:
        raise SystemExit(f"missing: {list(problem.missing)}") from problem
    except tracehook.RegistrationFailed as problem:
        raise SystemExit(str(dict(problem.failures))) from problem
    except tracehook.RegistrationError as problem:
        raise SystemExit(str(problem)) from problem
    answer = tracehook.explain(tensor, group, operation="all_reduce")
    if not tracehook.is_symmetric(tensor, group):
        print(answer.reason, answer.text, answer.path, answer.path_text)
    counts: list[int] = [tracehook.sync(group), tracehook.trim(group)]
    counts += [tracehook.pause(group, graphs_are_gone=False), tracehook.resume(group)]
    tracehook.release_graphs()
    feed: tracehook.Subscription = tracehook.subscribe()
    changes: list[tracehook.SegmentChange] = feed.changes()
    print([change.address + change.bytes for change in changes if change.what == "born"])
    feed.close()
    tracehook.rendezvous(tensor, group, name="made")
    whole = tracehook.all_gather_into_tensor(tensor, group)
    parts: list[Tensor] = tracehook.all_gather(tensor, group)
    mine = tracehook.reduce_scatter_tensor(whole, group)
    made = tracehook.empty(4, 8, dtype=torch.bfloat16, group=group, operation="all_reduce")
    total = tracehook.all_reduce(made, group)
    if known:
        tracehook.detach_communicator(communicator)
    return total + mine[: len(counts)].sum() + parts[0].sum()


def train(model: nn.Module) -> int:
    """Give the buffers of training to the drop-ins."""
    tracehook.ddp.apply(model)
    return tracehook.fsdp.apply(model, force_sum=True)


def serve() -> None:
    """Add a page to torch's debug server."""
    print(tracehook.DebugPage("logs").dump())


def share(group: dist.ProcessGroup, mine: Tensor, right: int, left: int) -> Tensor | None:
    """Map a neighbour's tensor."""
    try:
        with PeerGroup(group, timeout=10.0) as peers, tracehook.ipc.PeerGroup(group):
            theirs = peers.exchange({right: mine, left: None})[left]
            if isinstance(theirs, PeerTensor):
                return theirs.get()
    except PeerTensorGone:
        return None
    except (PeerLost, PeerTimeout, PeerError) as problem:
        print(problem)
    return None


def choose(request: Request, /) -> Answer | None:
    """Answer which pool a group's tensors come from."""
    return Answer.ISOLATED if max(request.ranks) > 8 else None


policy: Policy = choose
collector = tracehook.metrics.collector("/run/tracehook")

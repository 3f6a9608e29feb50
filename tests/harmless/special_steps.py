"""Steps of programs that capture graphs, shard models, or make communicators by hand."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import raw
import torch
import torch.distributed as dist
from common import RANK, WORLD
from player import Player, device, value

import tracehook
from tracehook.ipc import PeerGroup, PeerTensor

if TYPE_CHECKING:
    from programs import Step

REPLAYS = 2


class SpecialSteps(Player):
    """Graphs, FSDP2, and communicators that torch did not make."""

    def capture(self, at: int, step: Step, group: Any) -> None:
        """Capture the sum of a tensor of a scope, after a warm-up, and launch it."""
        size = step.sizes[0]
        source = torch.empty(size, device=device)
        with torch.cuda.stream(self.captured):
            with tracehook.symmetric(group, graph=True):
                warm = torch.empty(size, device=device)
            dist.all_reduce(warm, group=group)
            del warm
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.captured):
            with tracehook.symmetric(group):
                total = torch.empty(size, device=device)
            total.copy_(source)
            dist.all_reduce(total, group=group)
            passed = self._passed_on(step, group, total)
        self.graphs[step.tensors[0]] = graph, source, total, passed
        self.replay(at, step, group)

    def _passed_on(self, step: Step, group: Any, total: torch.Tensor) -> list[torch.Tensor]:
        """Return what each way of passing the tensor of a scope on made of it, in ordinary memory: equal elements."""
        members = self.members(step.group)
        place = members.index(RANK)
        passed = []
        if "sent" in step.how and len(members) > 1:
            passed.append(torch.empty_like(total))
            send = dist.P2POp(dist.isend, total, members[(place + 1) % len(members)], group)
            receive = dist.P2POp(dist.irecv, passed[-1], members[place - 1], group)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
        if "gathered" in step.how:
            passed.append(torch.empty(len(members) * len(total), device=device))
            dist.all_gather_into_tensor(passed[-1], total, group=group)
        if "broadcast" in step.how:
            passed.append(torch.empty_like(total))
            dist.broadcast(total if place == 0 else passed[-1], members[0], group=group)
            if place == 0:
                passed.pop()
        return passed

    def replay(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Launch a graph with other inputs each time."""
        graph, source, total, passed = self.graphs[step.tensors[0]]
        for number in range(REPLAYS):
            self.fill(source, value(at, RANK, number))
            graph.replay()
            torch.cuda.synchronize()
            for tensor in (total, *passed):
                self.expect(at, tensor, sum(value(at, rank, number) for rank in self.members(step.group)))
        if "reset" in step.how:
            graph.reset()
            del self.graphs[step.tensors[0]]

    def fsdp(self, at: int, step: Step, group: Any) -> None:
        """Train a small sharded model for a step, and look at what each all-gather of it moves."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        import tracehook.fsdp

        player = self

        class Looking(tracehook.fsdp.AllGather):
            """Gives other values than the parameters', whose kernels do nothing here."""

            def __call__(
                self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
            ) -> Any:
                player.fill(input_tensor, value(at, RANK))
                work = super().__call__(output_tensor, input_tensor, group, async_op)
                if work is not None:
                    work.wait()
                player.expect(at, output_tensor, *(value(at, rank) for rank in range(WORLD)))
                return work

        mesh = DeviceMesh.from_group(group, "cuda")
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
        model.to_empty(device=device)
        tracehook.fsdp.apply(model, force_sum="sum" in step.how)
        for part in model:
            part.set_custom_all_gather(Looking(group))
        for _ in range(2 if "train" in step.how else 1):
            model(torch.ones(4, 256).to(device)).sum().backward()
            model.zero_grad()
        torch.cuda.synchronize()
        del model, part, mesh
        gc.collect()  # a model is full of cycles

    def ddp(self, at: int, step: Step, group: Any) -> None:
        """Train a small copied model for three steps, and look at what each bucket of gradients sums."""
        from torch.nn.parallel import DistributedDataParallel

        import tracehook.ddp

        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
        model.to_empty(device=device)
        trained = DistributedDataParallel(
            model,
            device_ids=[device.index],
            process_group=group,
            bucket_cap_mb=1,
            gradient_as_bucket_view="view" in step.how,
        )
        tracehook.ddp.apply(trained)

        # Without types: DDP compares them with its own, and finds text where a server started the job.
        def summed(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ARG001
            buffer = self.fill(bucket.buffer(), value(at, RANK))
            dist.all_reduce(buffer, group=group)
            self.expect(at, buffer, self.total(at, step.group))
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(buffer)
            return done

        trained.register_comm_hook(None, summed)
        for _ in range(3):
            trained(torch.ones(4, 256).to(device)).sum().backward()
            trained.zero_grad()
        torch.cuda.synchronize()
        del model, trained, summed
        gc.collect()  # a model is full of cycles

    def peers(self, at: int, step: Step, group: Any) -> None:
        """Read the tensor of the rank before, each in a group of peers; "on": which stays open, and is used again."""
        members = self.members(step.group)
        if len(members) < 2:
            return
        place = members.index(RANK)
        after, before = (place + 1) % len(members), (place - 1) % len(members)
        stays = "on" in step.how
        peers = self.peer_groups.get(step.group) if stays else None
        peers = peers or PeerGroup(group)
        if stays:
            self.peer_groups[step.group] = peers
        with contextlib.nullcontext() if stays else peers:
            mine = self.tensors[step.tensors[0]]
            mine = torch.empty(len(mine), device=device) if "ordinary" in step.how else mine
            self.fill(mine, value(at, RANK))
            there = peers.exchange({after: mine} | ({before: mine} if before == after else {before: None}))[before]
            assert isinstance(there, PeerTensor)
            peers.signal(after)
            self.expect(at, peers.get(there), value(at, members[before]))
            peers.wait(after)
            if "held" in step.how:
                self.tensors.pop(step.tensors[0])
            del mine, there

    def own(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Make a communicator by hand, and sum a tensor of a scope of it."""
        for number in range(2 if "twice" in step.how else 1):
            own = raw.Group(f"{self.seed}-{at}-{number}")
            with tracehook.symmetric(communicator=own.comm):
                tensor = torch.empty(step.sizes[0], device=device)
            self.fill(tensor, value(at, RANK))
            raw.must(own.all_reduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel()))
            torch.cuda.synchronize()
            self.expect(at, tensor, sum(value(at, rank) for rank in range(WORLD)))
            if "kept" in step.how:
                self.owned.append((own, tensor))
                continue
            del tensor
            if "abort" in step.how:
                dist.barrier(device_ids=[device.index])
                torch.cuda.synchronize()
                own.abort()
            else:
                own.destroy()

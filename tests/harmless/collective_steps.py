"""Steps that move what tensors of scopes hold."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from common import RANK, until
from player import Player, device, value

import tracehook
from tracehook.hook.groups import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from programs import Step


class CollectiveSteps(Player):
    """Collectives, sends, and what several threads do at once."""

    def source(self, at: int, step: Step) -> torch.Tensor:
        """Return the first tensor of a step, filled with what this rank gives."""
        return self.fill(self.tensors[step.tensors[0]], value(at, RANK))

    def _used(self, step: Step, group: Any) -> Any:
        """Return the group that uses the tensor of a scope: its own one, or another one of the same ranks."""
        if "other group" in step.how and step.group in ("world", "twin"):
            return self.groups["twin" if step.group == "world" else "world"]
        return group

    def all_reduce(self, at: int, step: Step, group: Any) -> None:
        """Sum a tensor of a scope."""
        group = self._used(step, group)
        tensor = self.source(at, step)
        torch.cuda.current_stream().synchronize()  # the device would wait for other threads
        if "out of place" in step.how:
            tensor = tensor.clone()
        if "functional" in step.how:
            import torch.distributed._functional_collectives as functional  # takes seconds

            self.expect(at, functional.all_reduce(tensor, "sum", group), self.total(at, step.group))
            return
        if "helper" in step.how:
            self.expect(at, tracehook.all_reduce(tensor, group), self.total(at, step.group))
            return

        op = dist._make_nccl_premul_sum(0.5) if "operator" in step.how else dist.ReduceOp.SUM

        def reduce() -> None:
            torch.cuda.set_device(device)
            stream = self.side if "side stream" in step.how else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                work = dist.all_reduce(tensor, op, group, async_op="async" in step.how)
                if work is not None:
                    work.wait()
            stream.synchronize()

        if "thread" in step.how:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(reduce).result()
        else:
            reduce()
        if "operator" in step.how:
            tensor.mul_(2)  # and the sum of halves is exact
        self.expect(at, tensor, self.total(at, step.group))

    def start(self, at: int, step: Step, group: Any) -> None:
        """Begin a sum that goes on while later steps are taken."""
        work = dist.all_reduce(self.source(at, step), group=group, async_op=True)
        self.works[step.tensors[0]] = work, self.total(at, step.group)

    def finish(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Wait for that sum."""
        work, total = self.works.pop(step.tensors[0])
        work.wait()
        self.expect(at, self.tensors[step.tensors[0]], total)

    def split(self, step: Step) -> tuple[torch.Tensor, int, int]:
        """Return as much of the tensor as all ranks have parts of one size of; the size, and this rank's place."""
        members = self.members(step.group)
        size = step.sizes[0] // len(members)
        return self.tensors[step.tensors[0]][: size * len(members)], size, members.index(RANK)

    def all_gather(self, at: int, step: Step, group: Any) -> None:
        """Gather into a tensor of a scope, from a slice of it or from ordinary memory."""
        whole, size, place = self.split(step)
        is_inside = "in place" in step.how
        part = whole[place * size : (place + 1) * size] if is_inside else torch.empty(size, device=device)
        self.fill(part, value(at, RANK))
        work = all_gather_single(whole, part, group, async_op="async" in step.how)
        if work is not None:
            work.wait()
        self.expect(at, whole, *(value(at, rank) for rank in self.members(step.group)))

    def reduce_scatter(self, at: int, step: Step, group: Any) -> None:
        """Sum the parts of a tensor of a scope, each for one rank."""
        whole, size, place = self.split(step)
        members = self.members(step.group)
        self.fill(whole, *(value(at, RANK, part) for part in range(len(members))))
        is_inside = "in place" in step.how
        part = whole[place * size : (place + 1) * size] if is_inside else torch.empty(size, device=device)
        work = reduce_scatter_single(part, whole, dist.ReduceOp.SUM, group, async_op="async" in step.how)
        if work is not None:
            work.wait()
        self.expect(at, part, sum(value(at, rank, place) for rank in members))

    def all_to_all(self, at: int, step: Step, group: Any) -> None:
        """Exchange the parts of a tensor of a scope."""
        whole, _, place = self.split(step)
        members = self.members(step.group)
        self.fill(whole, *(value(at, RANK, part) for part in range(len(members))))
        received = torch.empty_like(whole)
        dist.all_to_all_single(received, whole, group=group)
        self.expect(at, received, *(value(at, rank, place) for rank in members))

    def broadcast(self, at: int, step: Step, group: Any) -> None:
        """Send a tensor of a scope to all; "in place": into memory of scopes, else into ordinary memory."""
        members = self.members(step.group)
        root = members[step.ranks[0] % len(members)]
        is_inside = root == RANK or "in place" in step.how
        tensor = self.source(at, step) if is_inside else torch.empty(step.sizes[0], device=device)
        dist.broadcast(tensor, root, group=self._used(step, group))
        self.expect(at, tensor, value(at, root))

    def reduce(self, at: int, step: Step, group: Any) -> None:
        """Sum a tensor of a scope for one rank."""
        members = self.members(step.group)
        root = members[step.ranks[0] % len(members)]
        tensor = self.source(at, step)
        dist.reduce(tensor, root, group=group)
        if root == RANK:
            self.expect(at, tensor, self.total(at, step.group))

    def ring(self, at: int, step: Step, group: Any) -> None:
        """Send a tensor of a scope to the next rank, and receive from the one before, in one batch."""
        members, group = self.members(step.group), self._used(step, group)
        if len(members) < 2:
            return
        place = members.index(RANK)
        after, before = members[(place + 1) % len(members)], members[place - 1]
        received = torch.empty(step.sizes[0], device=device)
        sends = dist.P2POp(dist.isend, self.source(at, step), after, group)
        for work in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, received, before, group)]):
            work.wait()
        self.expect(at, received, value(at, before))

    def send(self, at: int, step: Step, group: Any) -> None:
        """Send a tensor of a scope to one rank."""
        members, group = self.members(step.group), self._used(step, group)
        number, size = step.tensors[0], step.sizes[0]
        if len(members) > 1:
            source, target = (members[place % len(members)] for place in step.ranks)
            if source != target:
                self._send(at, step, group, source, target, size)
        if "drop" in step.how:
            self.tensors.pop(number, None)

    def _send(self, at: int, step: Step, group: Any, source: int, target: int, size: int) -> None:
        if source == RANK:
            tensor = self.source(at, step)
            if "async" in step.how:
                dist.isend(tensor, target, group=group).wait()  # else it holds the tensor, on this rank alone
            else:
                dist.send(tensor, target, group=group)
        elif target == RANK:
            received = torch.empty(size, device=device)
            dist.recv(received, source, group=group)
            self.expect(at, received, value(at, source))

    def dtensor(self, at: int, step: Step, group: Any) -> None:
        """Let a DTensor, whose part is a tensor of a scope, become whole."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        mesh = DeviceMesh.from_group(group, "cuda")
        placement = Partial() if "in place" in step.how else Shard(0)
        mine = DTensor.from_local(self.source(at, step), mesh, [placement], run_check=False)
        whole = mine.redistribute(mesh, [Replicate()]).to_local()
        if "in place" in step.how:
            self.expect(at, whole, self.total(at, step.group))
        else:
            self.expect(at, whole, *(value(at, rank) for rank in self.members(step.group)))

    def plain(self, at: int, step: Step, group: Any) -> None:
        """Sum ordinary memory; gather it, exchange it, pass it on in a ring."""
        members, size = self.members(step.group), step.sizes[0]
        place = members.index(RANK)
        tensor = self.fill(torch.empty(size, device=device), value(at, RANK))
        if "gather" in step.how:
            whole = torch.empty(size * len(members), device=device)
            dist.all_gather_into_tensor(whole, tensor, group=group)
            self.expect(at, whole, *(value(at, rank) for rank in members))
        if "exchange" in step.how:
            given = torch.empty(size * len(members), device=device)
            self.fill(given, *(value(at, RANK, part) for part in range(len(members))))
            got = torch.empty_like(given)
            dist.all_to_all_single(got, given, group=group)
            self.expect(at, got, *(value(at, rank, place) for rank in members))
        if "pass on" in step.how and len(members) > 1:
            got = torch.empty_like(tensor)
            after, before = members[(place + 1) % len(members)], members[place - 1]
            ends = dist.P2POp(dist.isend, tensor, after, group), dist.P2POp(dist.irecv, got, before, group)
            for work in dist.batch_isend_irecv(list(ends)):
                work.wait()
            self.expect(at, got, value(at, before))
        dist.all_reduce(tensor, group=group)
        self.expect(at, tensor, self.total(at, step.group))

    def barrier(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Wait for all ranks."""
        dist.barrier(group, device_ids=[device.index])

    # --- threads ---

    def _sums(self, at: int, name: str, number: int) -> None:
        """Sum a tensor of a scope a few times."""
        torch.cuda.set_device(device)
        own = torch.cuda.Stream(device)  # one stream for two groups would take their sums in another order on each rank
        own.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(own):
            for _ in range(3):
                tensor = self.fill(self.tensors[number], value(at, RANK))
                dist.all_reduce(tensor, group=self.groups[name])
                self.expect(at, tensor, self.total(at, name))

    def threads(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Use two groups at once, each on a thread of its own."""
        names = zip((step.group, step.second), step.tensors, strict=True)
        with ThreadPoolExecutor(2) as threads:
            begun = [threads.submit(self._sums, at, name, number) for name, number in names if self.is_in(name)]
        for each in begun:
            each.result()

    def beside(self, at: int, step: Step, group: Any) -> None:
        """Make a tensor in a scope while another thread uses a group, perhaps the same one."""
        groups = [self.groups["world"], self.groups["twin"]] if "both" in step.how else group
        with ThreadPoolExecutor(1) as thread:
            begun = None
            if self.is_in(step.second):
                backend = self.groups[step.second]._get_backend(device)
                begun = thread.submit(self._sums, at, step.second, step.tensors[1])
                # A scope that makes the communicator does so beside no collective that begins later.
                until(lambda: begun.done() or backend._get_sequence_number_for_group())
            time.sleep((at + RANK) % 2 * 0.02)  # so that the ranks come to both in another order
            if self.is_in(step.group):
                with tracehook.symmetric(groups):
                    self.tensors[step.tensors[0]] = torch.empty(step.sizes[0], device=device)
        if begun is not None:
            begun.result()

    def crowd(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Take the steps of several threads, each with its group. Threads whose groups share a pool take turns."""
        streams = [torch.cuda.Stream(device) for _ in step.lanes]

        def play(lane: tuple[Step, ...], stream: torch.cuda.Stream) -> None:
            torch.cuda.set_device(device)
            stream.wait_stream(torch.cuda.default_stream(device))
            with torch.cuda.stream(stream):
                for each in lane:
                    time.sleep(each.late[RANK] if each.late else 0.0)
                    self.take(at, each)
            stream.synchronize()

        takes_turns = self.around.policy == "shared"
        lanes = zip(step.lanes, streams, strict=True)
        with ThreadPoolExecutor(1 if takes_turns else len(step.lanes)) as threads:
            begun = [threads.submit(play, *each) for each in lanes]
        for each in begun:
            each.result()

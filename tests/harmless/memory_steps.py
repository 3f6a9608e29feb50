"""Steps that make tensors in scopes, and free them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from common import RANK, WORLD
from player import Player, device

import tracehook

if TYPE_CHECKING:
    from programs import Step


class OnPurpose(Exception):
    """The exception of a scope that fails on all ranks."""


class MemorySteps(Player):
    """Scopes in every form, and ends of tensors."""

    def sizes(self, at: int, step: Step) -> tuple[int, ...]:  # noqa: ARG002
        """Return the elements that this rank allocates in a scope."""
        return step.sizes

    def scope(self, at: int, step: Step, group: Any) -> None:
        """Make tensors inside of a scope."""
        sizes = self.sizes(at, step)
        groups = [self.groups["world"], self.groups["twin"]] if "both" in step.how else group
        is_for_graphs = "for graphs" in step.how

        def inside() -> list[torch.Tensor]:
            if "nested" in step.how:
                with tracehook.symmetric(groups, graph=is_for_graphs):
                    return [torch.empty(size, device=device) for size in sizes]
            return [torch.empty(size, device=device) for size in sizes]

        def whole() -> list[torch.Tensor]:
            torch.cuda.set_device(device)
            with tracehook.symmetric(groups, graph=is_for_graphs):
                return inside()

        async def task() -> list[torch.Tensor]:
            with tracehook.symmetric(groups, graph=is_for_graphs):
                await asyncio.sleep(0)
                return inside()

        def generated() -> Iterator[list[torch.Tensor]]:
            with tracehook.symmetric(groups, graph=is_for_graphs):
                yield inside()

        if "ordinary first" in step.how:
            torch.empty(7777, device=device)
        with contextlib.ExitStack() as around:
            if "inside another" in step.how:
                around.enter_context(tracehook.symmetric(self.groups["twin" if step.group == "world" else "world"]))
            if "task" in step.how:
                made = asyncio.run(task())
            elif "generator" in step.how:
                steps = generated()
                made = next(steps)
                assert next(steps, None) is None
            elif "thread" in step.how:
                made = self.workers[at * (RANK + 1) % 2].submit(whole).result()  # whichever is free
            else:
                made = whole()
        for number, tensor, size in zip(step.tensors, made, step.sizes, strict=True):
            self.tensors[number] = tensor[:size]

    def failing(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Leave a scope by an exception, on all ranks."""
        with contextlib.suppress(OnPurpose), tracehook.symmetric(group):
            made = [torch.empty(size, device=device) for size in step.sizes]
            del made
            raise OnPurpose

    def free(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Drop a tensor: at once, on another thread, or by Python's garbage collector."""
        number = step.tensors[0]
        if "thread" in step.how:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self.tensors.pop, number).exception()
        elif "cycle" in step.how:
            knot: list[Any] = [self.tensors.pop(number)]
            knot.append(knot)
            del knot
            gc.collect()
        else:
            self.tensors.pop(number)

    def flight(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Drop a tensor while another stream writes into it, for as long as each rank's device takes."""
        tensor = self.tensors.pop(step.tensors[0])
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            tensor.copy_(torch.full((tensor.numel(),), 7.0).pin_memory(), non_blocking=True)
        tensor.record_stream(self.side)

    def reserve(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Grow the pool of a group."""
        tracehook.reserve(step.sizes[0] * 8, group, graph="graph" in step.how, small_nbytes=0)

    def trim(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Give back what no rank uses."""
        tracehook.trim(group)

    def sync(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Compare what was used so far."""
        tracehook.sync(group)

    def empty_cache(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Have torch give back its own cache."""
        torch.cuda.empty_cache()

    def ask(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Ask what no other rank hears of."""
        tracehook.status()
        for number in step.tensors:
            tensor = self.tensors[number]
            tracehook.is_symmetric(tensor, group)
            tracehook.explain(tensor, group, operation="all_reduce")

    def restart(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """End all groups, and make them anew over another store. Rank 0 has the old one, which all may still need."""
        self.control.set(f"seed {self.seed}, step {at}: {RANK}", "")
        self.control.wait([f"seed {self.seed}, step {at}: {rank}" for rank in range(WORLD)])
        self.wrong += self.end()
        self.begin(f"seed {self.seed} from step {at}")

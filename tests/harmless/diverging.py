"""A rank that does something else at one step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import divergences
import torch
from collective_steps import CollectiveSteps
from common import RANK
from memory_steps import MemorySteps, OnPurpose
from player import device
from special_steps import SpecialSteps

import tracehook

if TYPE_CHECKING:
    from pathlib import Path

    from programs import Step

MORE = 8 << 20  # elements: more than any segment of the pools has left


class Run(MemorySteps, CollectiveSteps, SpecialSteps):
    """One seed on this rank."""


class Diverging(Run):
    """One seed on this rank, with a divergence on one rank."""

    def __init__(self, seed: int, control: Any, folder: Path, patience: float) -> None:
        super().__init__(seed, control, folder, patience)
        found = divergences.draw(seed, self.program)
        assert found is not None
        self.divergence = found

    def play(self) -> None:
        """Take every step, and compare what was used."""
        super().play()
        tracehook.sync(list(self.groups.values()))

    def take(self, at: int, step: Step) -> None:
        """Take a step, or do something else."""
        kind = self.divergence.kind
        if kind == "known" and at == self.divergence.at and self.is_in(step.group):  # of both, to all
            for number in (*step.tensors, self.divergence.other):
                plain = dataclasses.replace(step, tensors=(number,), how=frozenset())
                self.all_reduce(at, plain, self.groups[step.group])
        if self.divergence.rank != RANK or at not in (self.divergence.at, self.divergence.at + (kind == "swap")):
            super().take(at, step)
        else:
            getattr(self, kind)(at, step, self.groups[step.group])

    def sizes(self, at: int, step: Step) -> tuple[int, ...]:
        """Return other sizes at the step that diverges."""
        if self.divergence.rank == RANK and at == self.divergence.at and self.divergence.kind == "size":
            return tuple(size + MORE for size in step.sizes)
        return step.sizes

    def size(self, at: int, step: Step, group: Any) -> None:
        """Make larger tensors."""
        self.scope(at, step, group)

    def order(self, at: int, step: Step, group: Any) -> None:
        """Make the tensors of a scope the other way round."""
        self.scope(at, dataclasses.replace(step, tensors=step.tensors[::-1], sizes=step.sizes[::-1]), group)

    def swap(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Enter the second of two scopes first."""
        other = 2 * self.divergence.at + 1 - at
        self.scope(other, self.program.steps[other], group)

    def skip(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Make the tensors in ordinary memory."""
        for number, size in zip(step.tensors, step.sizes, strict=True):
            self.tensors[number] = torch.empty(size, device=device)

    def extra(self, at: int, step: Step, group: Any) -> None:
        """Enter one more scope."""
        with tracehook.symmetric(group):
            more = torch.empty(MORE, device=device)
        super().take(at, step)
        del more

    def memory(self, at: int, step: Step, group: Any) -> None:
        """Use ordinary memory in place of a tensor of a scope."""
        number = step.tensors[0]
        mine = self.tensors[number]
        self.tensors[number] = torch.empty_like(mine)
        self.all_reduce(at, step, group)
        self.tensors[number] = mine

    def other(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Use another tensor."""
        number = step.tensors[0]
        mine = self.tensors[number]
        self.tensors[number] = self.tensors[self.divergence.other][: mine.numel()]
        super().take(at, step)
        self.tensors[number] = mine

    known = other

    def forgets(self, at: int, step: Step, group: Any) -> None:
        """Do nothing."""

    def count(self, at: int, step: Step, group: Any) -> None:
        """Use half of a tensor."""
        number = step.tensors[0]
        mine = self.tensors[number]
        self.tensors[number] = mine[: mine.numel() // 2]
        self.all_reduce(at, step, group)
        self.tensors[number] = mine

    def reduction(self, at: int, step: Step, group: Any) -> None:
        """Reduce by another operation."""
        self.all_reduce(at, dataclasses.replace(step, how=step.how ^ {"operator"}), group)

    def group(self, at: int, step: Step, group: Any) -> None:
        """Use another group of the same ranks."""
        how = step.how ^ {"other group"}
        self.all_reduce(at, dataclasses.replace(step, how=how), group)

    def exception(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Leave a scope by an exception, and go no further."""
        with tracehook.symmetric(group):
            made = [torch.empty(size, device=device) for size in step.sizes]
            del made
            raise OnPurpose

    def fails(self, at: int, step: Step, group: Any) -> None:
        """Leave a scope by an exception, and go on with what it made."""
        with contextlib.suppress(OnPurpose), tracehook.symmetric(group):
            self.skip(at, step, group)
            raise OnPurpose

    def leaves(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Do nothing any more, for longer than the others wait, and end."""
        time.sleep(2.5 * self.patience)
        os._exit(0)

    def killed(self, at: int, step: Step, group: Any) -> None:  # noqa: ARG002
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)

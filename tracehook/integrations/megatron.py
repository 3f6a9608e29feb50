"""Megatron-LM: tracehook's scopes in the place of the contexts of its module ``nccl_allocator``."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch

from tracehook.integrations import choice
from tracehook.integrations.replacing import replace, when_imported
from tracehook.symmetric_memory import state
from tracehook.symmetric_memory.public import symmetric as scope_of
from tracehook.symmetric_memory.public import sync

MODULE = "megatron.core.nccl_allocator"


def install() -> None:
    """Replace names of Megatron's module as soon as it is imported."""
    when_imported(MODULE, _replace)


def _replace(module: ModuleType) -> None:
    choice.say_replaced("megatron", MODULE, replace(module, replacements(module)))


class StandInPool:
    """What Megatron gets instead of a ``torch.cuda.MemPool``: its memory comes from tracehook's pools."""

    def __init__(self) -> None:
        self.unregistered: list[int] = []  # segments that were touched without registration, in that order
        self.theirs: Any = None  # Megatron's own pool; its first request for memory that is not symmetric makes it

    def keep(self, touched: list[int] | None, error: BaseException | None) -> None:
        """Remember what a scope touched, for the registration that comes later."""
        if error is None:
            self.unregistered += [segment for segment in touched or () if segment not in self.unregistered]


def replacements(module: ModuleType) -> dict[str, Any]:
    """Return what takes the place of names of Megatron's module.

    Megatron's own functions get its own pools, memory that shall not be symmetric, and all where tracehook has none.
    """
    theirs = dict(vars(module))

    def is_ours(pool: Any, symmetric: bool) -> bool:
        return isinstance(pool, StandInPool) and symmetric and state.memory() is not None

    def own(pool: Any) -> Any:
        """Return Megatron's pool for the one that it has."""
        if not isinstance(pool, StandInPool):
            return pool
        if pool.theirs is None:
            pool.theirs = theirs["create_nccl_mem_pool"]()
        return pool.theirs

    def init() -> None:
        """Set what Megatron's own function sets. There is no allocator to compile."""
        if state.memory() is None:
            theirs["init"]()
            return
        os.environ["NCCL_NVLS_ENABLE"] = "1"
        os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "0"

    def create_nccl_mem_pool(symmetric: bool | None = None) -> Any:
        """Return what stands for a pool; Megatron's own pool if it shall not be symmetric."""
        is_theirs = symmetric is False or state.memory() is None
        return theirs["create_nccl_mem_pool"](symmetric) if is_theirs else StandInPool()

    def nccl_mem(pool: Any, enabled: bool = True, device: Any = None, group: Any = None, symmetric: bool = True) -> Any:
        """Return a scope on the group, or on the default group."""
        if not is_ours(pool, symmetric):
            return theirs["nccl_mem"](own(pool), enabled, device, group, symmetric)
        return scope_of(group) if enabled else nullcontext()

    def MultiGroupMemPoolAllocator(pool: Any, groups: list[Any], symmetric: bool = True) -> Any:
        """Return a scope on all of the groups."""
        if not is_ours(pool, symmetric):
            return theirs["MultiGroupMemPoolAllocator"](own(pool), groups, symmetric)
        return scope_of(groups)

    def MemPoolAllocatorWithoutRegistration(pool: Any) -> Any:
        """Return a scope that registers nothing: :func:`register_mem_pool` does."""
        memory = state.memory()
        if memory is None or not isinstance(pool, StandInPool):
            return theirs["MemPoolAllocatorWithoutRegistration"](own(pool))
        return memory.unregistered(torch.cuda.current_device(), pool.keep)

    def register_mem_pool(pool: Any, group: Any, symmetric: bool = True) -> None:
        """Register with the group what was made without registration. Collective."""
        memory = state.memory()
        if memory is None or not is_ours(pool, symmetric):
            theirs["register_mem_pool"](own(pool), group, symmetric)
            return
        waiting = memory.windows(group).deferred
        waiting += [segment for segment in pool.unregistered if segment not in waiting]
        sync(group)

    def deregister_mem_pool(pool: Any, group: Any) -> None:
        """Keep the windows of tracehook: they end with the group, or by ``tracehook.trim``."""
        if not isinstance(pool, StandInPool) or pool.theirs is not None:
            theirs["deregister_mem_pool"](own(pool), group)

    ours: list[Any] = [
        init,
        create_nccl_mem_pool,
        nccl_mem,
        MultiGroupMemPoolAllocator,
        MemPoolAllocatorWithoutRegistration,
        register_mem_pool,
        deregister_mem_pool,
    ]
    return {new.__name__: new for new in ours}

"""FSDP2's buffers for communication in symmetric memory, by the means that FSDP2 has for it.

``tracehook.fsdp.apply(model)`` after ``fully_shard`` is enough. What torch 2.11 allocates through these objects, and
when NCCL takes its symmetric kernels:

* All-gather: one buffer, the output. The input of a rank is a slice of it, so both are in the window, as NCCL before
  2.29 wants it (a newer one asks for the output alone). It lives until its parameters are copied out of it: two at a
  time, whose memory the next layers use again.
* Reduce-scatter: the input, which lives until the next layer's, and then the output. Where gradients are reduced in
  the type of the parameters, the output is the memory of ``parameter.grad`` and lives until ``zero_grad()``.

FSDP2 asks for averages, and for these NCCL 2.28 has no symmetric reduce-scatter. See `force_sum` of :func:`apply`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracehook.hook.groups import all_gather_single, reduce_scatter_single
from tracehook.symmetric_memory.outputs import empty_in
from tracehook.symmetric_memory.public import symmetric

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup, Work

    from tracehook.symmetric_memory.public import Groups


class _Buffers:
    """Makes buffers in a scope. The caching allocator gives each step the memory of the step before."""

    _operation = ""

    def __init__(self, group: Groups = None, *, graph: bool = False) -> None:
        """Remember the group.

        Args:
            group: the process group over which parameters are sharded, or several; the default group if None.
            graph: use the memory of captured CUDA graphs; see :func:`tracehook.symmetric`.

        """
        self.group = group
        self._graph = graph

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Return an uninitialised tensor from a scope of the group. All ranks of the group call it alike.

        If tracehook is not enabled, or the device is not CUDA, it is ``torch.empty``.

        Args:
            size: the dimensions, equal on all ranks.
            dtype: as in ``torch.empty``.
            device: as in ``torch.empty``.

        Raises:
            RegistrationError, PoolLimitError: see :func:`tracehook.symmetric`.

        """
        scope = symmetric(
            self.group,
            disabled=str(device).partition(":")[0] != "cuda",
            graph=self._graph,
            operation=self._operation,
            nbytes=math.prod(size) * dtype.itemsize,
            dtype=str(dtype).removeprefix("torch."),
        )
        return empty_in(scope, size, dtype, device)


class AllGather(_Buffers):
    """For ``FSDPModule.set_custom_all_gather``: torch's all-gather on buffers in symmetric memory of `group`."""

    _operation = "all_gather"

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> Work | None:
        """Gather `input_tensor` of all ranks of `group` in `output_tensor`. FSDP2 passes all arguments."""
        work: Work | None = all_gather_single(output_tensor, input_tensor, group, async_op)
        return work


class ReduceScatter(_Buffers):
    """For ``FSDPModule.set_custom_reduce_scatter``: torch's reduce-scatter on buffers in symmetric memory."""

    _operation = "reduce_scatter"

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> Work | None:
        """Reduce `input_tensor` over `group`, this rank's part into `output_tensor`. FSDP2 passes all arguments."""
        work: Work | None = reduce_scatter_single(output_tensor, input_tensor, op, group, async_op)
        return work


def apply(model: nn.Module, *, force_sum: bool = False, graph: bool = False) -> int:
    """Give each module that ``fully_shard`` sharded inside `model` buffers in symmetric memory of its group.

    Call it on all ranks, after the last ``fully_shard`` and before the first step. The group is the one over which
    FSDP2 shards the parameters. Collectives over other groups keep their buffers: the all-reduce between the replicas
    of HSDP, and with ``reshard_after_forward=N`` the all-gather of N ranks before a backward. See docs/symmetric.md.

    Args:
        model: a module, sharded itself or with sharded modules inside.
        force_sum: also set ``set_force_sum_reduction_for_comms(True)``, so that FSDP2 asks NCCL for sums and divides
            them itself. NCCL 2.28, which torch 2.11 has, reduces only sums with symmetric kernels.
        graph: use the memory of captured CUDA graphs; see :func:`tracehook.symmetric`.

    Returns:
        the number of modules that it changed. Modules without parameters of their own have no buffers.

    Raises:
        TypeError: `model` has no sharded module inside.
        RuntimeError: this torch has no ``set_custom_all_gather``.

    """
    from torch.distributed.fsdp import FSDPModule
    from torch.nn import Module

    if not hasattr(FSDPModule, "set_custom_all_gather") or not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        from torch import __version__ as version

        raise RuntimeError(
            f"tracehook.fsdp.apply: torch {version} has no FSDPModule.set_custom_all_gather and "
            "set_custom_reduce_scatter: use torch 2.11 or newer"
        )
    sharded = [one for one in model.modules() if isinstance(one, FSDPModule)] if isinstance(model, Module) else []
    if not sharded:
        raise TypeError(
            f"tracehook.fsdp.apply: nothing inside of {type(model).__name__} is sharded: call fully_shard before"
        )
    made: dict[ProcessGroup, tuple[AllGather, ReduceScatter]] = {}
    changed = 0
    for module in sharded:
        group = _group(module)
        if group is None:
            continue
        if group not in made:
            made[group] = AllGather(group, graph=graph), ReduceScatter(group, graph=graph)
        gather, scatter = made[group]
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(scatter)
        if force_sum:
            module.set_force_sum_reduction_for_comms(True)
        changed += 1
    return changed


def _group(module: Any) -> ProcessGroup | None:
    """Return the group over which a module's parameters are sharded, for which torch has no public name.

    None: the module has no parameters of its own, or every rank holds all of them.
    """
    state = module._get_fsdp_state()
    # One at most in torch 2.11. Where newer ones have several, they refuse custom collectives themselves.
    parameters = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return getattr(getattr(parameters[0], "mesh_info", None), "shard_process_group", None)

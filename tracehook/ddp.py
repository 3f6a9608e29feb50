"""The buckets of DistributedDataParallel in symmetric memory.

DDP makes its buckets twice: in its constructor, and once more when it has seen in which order gradients come, at the
beginning of the second step (of the third with ``static_graph``). So a scope around the constructor serves one step
only. :func:`apply` has the second buckets made in a scope; they stay, and all later steps use them.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from tracehook.symmetric_memory.public import symmetric
from tracehook.symmetric_memory.scope import NO_SCOPE

if TYPE_CHECKING:
    from torch import nn

# Reducers to which this module added a hook. Each copy of a model has its own reducer. Only one hook removes itself.
_served: weakref.WeakSet[Any] = weakref.WeakSet()


def _refuse_uneven(module: Any, inputs: Any) -> None:  # noqa: ARG001
    if module._join_config.enable:  # a Join with enable=False changes nothing
        raise ValueError(
            "Join: the buckets of this DistributedDataParallel are in symmetric memory, and ranks that have joined "
            "would reduce zeros elsewhere; leave out tracehook.ddp.apply for models with uneven inputs"
        )


def apply(model: nn.Module) -> None:
    """Let DDP make the lasting buckets of `model` in symmetric memory of its group.

    Call it on all ranks after the constructor and before the second step; a second call does nothing. The first steps
    use ordinary buckets. If tracehook is not enabled, or the device is not CUDA, all buckets stay ordinary. So they do
    if the second forward is inside of a ``Join``: ranks that have joined reduce zeros elsewhere than in their buckets.
    After it, a forward inside of a ``Join`` raises ValueError.

    DDP makes the buckets at the beginning of the second forward, in a scope with ``operation="all_reduce"`` and no
    size. That forward raises the errors of :func:`tracehook.symmetric`. See docs/symmetric.md.

    Args:
        model: a ``torch.nn.parallel.DistributedDataParallel``.

    Raises:
        TypeError: `model` is no DistributedDataParallel.
        ValueError: `model` has ``find_unused_parameters`` and no ``static_graph``, so it keeps its first buckets.

    """
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"tracehook.ddp.apply: expected a DistributedDataParallel, got {type(model).__name__}")
    if model.find_unused_parameters and not model.static_graph:
        raise ValueError(
            "tracehook.ddp.apply: with find_unused_parameters=True DDP keeps its first buckets: make it inside of "
            "`with tracehook.symmetric(group)` instead"
        )

    if model.reducer not in _served:
        _served.add(model.reducer)
        model.register_forward_pre_hook(_rebuild)


def _rebuild(module: Any, inputs: Any) -> None:  # noqa: ARG001
    """Do in a scope what the forward would do next. No closure, because a model is copied and pickled."""
    import torch

    if not torch.is_grad_enabled():
        return
    if module._join_config.enable:
        _rebuild_no_more(module)
        return
    gc.collect()  # a model before this one may be garbage that holds buckets, and go at another moment on each rank
    scope = symmetric(module.process_group, disabled=module.device.type != "cuda", operation="all_reduce")
    with scope:
        is_done = module.reducer._rebuild_buckets()
    if is_done:
        module._has_rebuilt_buckets = True  # the forward will not see it, and ZeRO's hooks wait for it
        _rebuild_no_more(module)
    if is_done and scope is not NO_SCOPE:
        module.register_forward_pre_hook(_refuse_uneven)


def _rebuild_no_more(module: nn.Module) -> None:
    for number in [number for number, hook in module._forward_pre_hooks.items() if hook is _rebuild]:
        del module._forward_pre_hooks[number]

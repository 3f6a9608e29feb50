"""Keeps GPU memory segments registered with the NCCL communicators that use them, and leaves a log that proves it.

``SYMM_REGISTER_HOOK=1`` before a command is enough; from code, :func:`enable` does the same. Importing this module
loads neither torch nor the native core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

    from tracehook import ddp, fsdp, ipc, metrics
    from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout

    # Those of `compiled`, with the signatures and the docstrings that readers of the source see.
    from tracehook.symmetric_memory.outputs import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        empty,
        reduce_scatter_tensor,
    )
    from tracehook.symmetric_memory.pools import PoolLimitError
    from tracehook.symmetric_memory.public import explain, is_symmetric, release_graphs, symmetric, sync, trim
    from tracehook.symmetric_memory.reserve import reserve

__version__ = "0.1.0"

__all__ = [
    "PoolLimitError",
    "RegistrationError",
    "RegistrationFailed",
    "RegistrationMismatch",
    "RegistrationTimeout",
    "__version__",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "attach_communicator",
    "ddp",
    "detach_communicator",
    "disable",
    "empty",
    "enable",
    "explain",
    "fsdp",
    "ipc",
    "is_symmetric",
    "metrics",
    "reduce_scatter_tensor",
    "release_graphs",
    "reserve",
    "status",
    "symmetric",
    "sync",
    "trim",
    "use_store",
]

_MODULES = ("ddp", "fsdp", "ipc", "metrics")
# Found at their first use: `import torch` loads this file in every process, also in those that use none of it.
_LAZY = {
    "RegistrationError": "errors",
    "RegistrationFailed": "errors",
    "RegistrationMismatch": "errors",
    "RegistrationTimeout": "errors",
    "PoolLimitError": "symmetric_memory.pools",
    "symmetric": "symmetric_memory.public",
    "is_symmetric": "symmetric_memory.public",
    "explain": "symmetric_memory.public",
    "sync": "symmetric_memory.public",
    "trim": "symmetric_memory.public",
    "release_graphs": "symmetric_memory.public",
    "reserve": "symmetric_memory.reserve",
    "empty": "symmetric_memory.compiled",
    "all_gather": "symmetric_memory.compiled",
    "all_gather_into_tensor": "symmetric_memory.compiled",
    "all_reduce": "symmetric_memory.compiled",
    "reduce_scatter_tensor": "symmetric_memory.compiled",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _LAZY:
        raise AttributeError(f"module 'tracehook' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"tracehook.{name}")
    found = getattr(importlib.import_module(f"tracehook.{_LAZY[name]}"), name)
    globals()[name] = found  # from now on as cheap as any other function of the module
    return found


def enable() -> None:
    """Follow the caching allocator and register every segment with every live NCCL communicator of its device.

    The same as ``SYMM_REGISTER_HOOK=1``, from code; may be called at any time and any number of times. Communicators
    and segments that exist already are adopted. Does not initialise CUDA: until the program does, it only waits.

    All ranks call it at the same point of the program, with no collective under way: with NVLS, ranks that differ in
    what they registered wait for each other without end inside NCCL, where not even an abort reaches them. When it is
    called again after :func:`disable`, it registers every segment before it returns.

    Where the allocator cannot be followed (expandable segments, another allocator, no CUDA), one line on stderr says
    what to do and the program runs on; :func:`status` has the reason.

    Raises:
        RuntimeError: this process was forked from one that had initialised CUDA, which cannot be used in it.

    """
    import tracehook.symmetric_memory.state  # noqa: F401  # it follows the service
    from tracehook.hook.service import service

    if service().settings.metrics is not None:
        from tracehook.metrics.follow import follow

        follow()
    service().enable()
    from tracehook.integrations.entry import megatron

    megatron()


def disable() -> None:
    """Undo all local registrations and make no more, until :func:`enable`; scopes of symmetric memory do nothing.

    All ranks call it at the same point of the program, with no collective under way: NCCL may hang where ranks differ
    in what they registered. It compares nothing between them.

    Windows stay until :func:`trim` or the end of their communicator.

    Segments and communicators are still followed, so that enabling again is complete. May be called any number of
    times. tracehook raises nothing here. It waits for the device, and for calls of other threads that are inside NCCL.
    A non-blocking communicator that is in progress for more than 30 s keeps its registrations until their segments are
    freed; stderr says so.
    """
    from tracehook.hook.service import service

    service().disable()


def status() -> dict[str, Any]:
    """Return what tracehook does in this process.

    Keys: ``state`` (``off``, ``waiting`` for CUDA, ``on``, ``recording`` without registering, ``unsupported``,
    ``forked``), ``reasons`` (names and advice, empty if all is well), ``segments``, ``bytes``, ``expandable_bytes``
    (mapped of expandable segments, which are followed and not registered), ``communicators`` (a list of dicts with
    ``key``, ``device``, ``rank``, ``size``, ``held``, ``made``, ``undone``, ``ready``, ``failed``,
    ``device_communicators``: how many live, ``segments_since_ns`` and ``windows_since_ns``: the monotonic time at
    which the oldest registration began that is in NCCL now, 0: none is), ``dropped`` (events lost), ``log`` (path or
    None), ``nccl``, ``hook_library``, ``pools`` (symmetric memory: a dict for each pool and device, with ``segments``,
    ``bytes``, ``retired_bytes``), ``windows`` (a dict for each group, with ``windows``, ``bytes``, ``pinned``,
    ``deferred``, ``refused``) and ``scopes`` (a dict for each thread that is in scopes of a pool, with ``group``,
    ``pool``, ``device``, ``thread``, ``depth``, ``seconds``, the longest first). Cheap; makes no call into CUDA or
    NCCL.
    """
    from tracehook.hook.service import service

    return service().status()


def attach_communicator(pointer: int, *, device: int | None = None, name: str | None = None) -> bool:
    """Register every segment with a communicator that tracehook did not see when it was made.

    This is not needed for communicators that are made after tracehook was enabled, whoever makes them: torch, ctypes
    (pynccl), or a library that links NCCL. One line on stderr then says so. It is needed for one that other code than
    torch made before, or whose functions of NCCL that code had looked up before.

    Call it when the communicator is ready, and :func:`detach_communicator` before it is destroyed: tracehook sees
    neither. No other thread may be in NCCL with this communicator while segments come or go, because its calls do not
    pass tracehook.

    Args:
        pointer: the raw ``ncclComm_t``.
        device: its CUDA device index; the current device if None.
        name: any text that is equal on all its ranks and different for each communicator; the log's key is made
            from it. If None, the count of such calls is used, which is equal on all ranks if all attach in the same
            order.

    Returns:
        False if tracehook knows it already.

    Raises:
        ValueError: `pointer` is 0.
        RuntimeError: tracehook is not enabled, or torch has no NCCL.

    """
    from tracehook.hook.service import service

    return service().attach_communicator(pointer, device, name)


def use_store(store: Store | None) -> None:
    """Name the store at which the ranks of communicators meet that torch did not make, to compare their windows.

    It is not needed where ``torch.distributed`` is initialised: then the default group's store serves. Call it on all
    ranks, before the first window is registered.

    Args:
        store: a store that all ranks of the job share; None: the default group's again.

    """
    from tracehook.hook.groups import use_store as choose

    choose(store)


def detach_communicator(pointer: int) -> bool:
    """Deregister everything from an attached communicator, which must still be alive. False if it is unknown."""
    from tracehook.hook.service import service

    return service().detach_communicator(pointer)

"""Keeps GPU memory segments registered with the NCCL communicators that use them, and leaves a log that proves it.

``SYMM_REGISTER_HOOK=1`` before a command is enough; from code, :func:`enable` does the same. Importing this module
loads neither torch nor the native core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from tracehook import ddp, fsdp, ipc, metrics
    from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
    from tracehook.hook.feed import SegmentChange, Subscription, subscribe
    from tracehook.hook.status import Status

    # Those of `compiled`, with the signatures and the docstrings that readers of the source see.
    from tracehook.symmetric_memory.outputs import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        empty,
        reduce_scatter_tensor,
    )
    from tracehook.symmetric_memory.pools import PoolLimitError
    from tracehook.symmetric_memory.public import (
        explain,
        is_symmetric,
        pause,
        release_graphs,
        resume,
        symmetric,
        sync,
        trim,
    )
    from tracehook.symmetric_memory.rendezvous import rendezvous
    from tracehook.symmetric_memory.reserve import reserve
    from tracehook.views.debug_page import DebugPage

__version__ = "0.2.0"

__all__ = [
    "DebugPage",
    "PoolLimitError",
    "RegistrationError",
    "RegistrationFailed",
    "RegistrationMismatch",
    "RegistrationTimeout",
    "SegmentChange",
    "Status",
    "Subscription",
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
    "pause",
    "reduce_scatter_tensor",
    "release_graphs",
    "rendezvous",
    "reserve",
    "resume",
    "status",
    "subscribe",
    "symmetric",
    "sync",
    "trim",
    "use_store",
]

_MODULES = ("ddp", "fsdp", "ipc", "metrics")
# Found at their first use: `import torch` loads this file in every process, also in those that use none of it.
_LAZY = {
    name: module
    for module, names in {
        "errors": ("RegistrationError", "RegistrationFailed", "RegistrationMismatch", "RegistrationTimeout"),
        "hook.feed": ("SegmentChange", "Subscription", "subscribe"),
        "hook.status": ("Status",),
        "symmetric_memory.compiled": (
            *("all_gather", "all_gather_into_tensor", "all_reduce", "empty", "reduce_scatter_tensor"),
        ),
        "symmetric_memory.pools": ("PoolLimitError",),
        "symmetric_memory.public": (
            *("explain", "is_symmetric", "pause", "release_graphs", "resume", "symmetric", "sync", "trim"),
        ),
        "symmetric_memory.rendezvous": ("rendezvous",),
        "symmetric_memory.reserve": ("reserve",),
        "views.debug_page": ("DebugPage",),
    }.items()
    for name in names
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


def __dir__() -> list[str]:
    import sys
    from importlib.util import find_spec

    has_torch = sys.modules.get("torch") or find_spec("torch")
    return __all__ if has_torch else [name for name in __all__ if name in globals()]  # help() reads what is listed


def enable() -> None:
    """Follow the caching allocator, and register its segments with NCCL communicators where NCCL gains by it.

    docs/registration.md says which segments these are. ``SYMM_REGISTER_LOCAL=all`` registers every one with each live
    communicator of its device. The call does the same as ``SYMM_REGISTER_HOOK=1``. A program may call it at any time
    and any number of times. It covers the communicators and segments that exist already. It does not initialise CUDA:
    until the program does, tracehook only waits.

    All ranks call it at the same point of the program, with no collective under way. With NVLS, ranks whose
    registrations differ wait for each other without end inside NCCL, and not even an abort reaches them. A call after
    :func:`disable` registers again before it returns.

    If tracehook cannot follow the allocator (expandable segments, another allocator, no CUDA), it prints one line of
    advice on stderr, and the program runs on. :func:`status` has the reason.

    Raises:
        RuntimeError: a process that had initialised CUDA forked this one, so this one cannot use CUDA.

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
    """Undo all local registrations and make no more, until :func:`enable`. Until then scopes do nothing.

    All ranks call it at the same point of the program, with no collective under way. NCCL may hang if the
    registrations of ranks differ, and this function compares nothing between them.

    Windows stay until :func:`trim` or the end of their communicator.

    tracehook still follows segments and communicators, so a later :func:`enable` misses none. A program may call this
    any number of times, and it raises nothing. It waits for the device, and for calls of other threads that are inside
    NCCL. If a non-blocking communicator is in progress for more than 30 s, it keeps its registrations until the
    allocator frees their segments, and stderr says so.
    """
    from tracehook.hook.service import service

    service().disable()


def status() -> Status:
    """Return the state of tracehook in this process. It is cheap.

    It makes no call into CUDA, and of NCCL it asks only for the memory that NCCL holds (a read of counts).

    The answer is a dict; :class:`tracehook.Status` has its types.

    Keys:
        state: ``off``, ``waiting`` (for CUDA), ``on``, ``recording`` (without registering), ``unsupported`` or
            ``forked``.
        reasons: names and advice, empty if all is well.
        segments, bytes: number and bytes of the allocator's segments that are not expandable.
        expandable_bytes: mapped bytes of expandable segments. tracehook logs these but does not register them.
        communicators: a list of dicts with ``key`` (equal on all ranks, as in the log), ``device``, ``rank``,
            ``size``, ``local``, ``held`` (registered segments), ``made`` and ``undone`` (registrations so far),
            ``in_effect`` and ``in_vain`` (registrations that NCCL used, or did not use, in the first call that could),
            ``at_calls`` (whether a segment is registered at the first call that gains), ``one_host``,
            ``spared`` (bits: rules of SYMM_REGISTER_SEGMENTS that do not count for it),
            ``ready``, ``failed``, ``suspended``, ``memory`` (bytes of the device that NCCL holds for it:
            ``suspendable``, ``suspended``, which it gave back until the resume, and ``persistent``; None before NCCL
            2.29.7), ``device_communicators`` (number that live), ``segments_since_ns`` and
            ``windows_since_ns`` (nanoseconds of the monotonic clock at which the oldest registration that is in NCCL
            now began; 0: there is none).
        memory: where segments come from: ``source`` (``torch`` or ``vmm``), and of ``vmm`` its ``segments``, ``bytes``
            and ``refused`` (requests that went to cudaMalloc).
        left_out: segments that nobody registers, because NCCL could not use it or a rule of SYMM_REGISTER_SEGMENTS says
            so: ``segments``, ``bytes``, ``why``, and ``by`` (the same numbers by the name of the rule).
        asleep: segments that torch keeps while a library has taken their memory away: ``segments``, ``bytes``.
        dropped: events that the ring lost because it was full.
        log: path of the log, or None.
        nccl, hook_library: the loaded NCCL, and the chosen library.
        pools: of symmetric memory: a dict for each pool and device, with ``segments``, ``bytes``, ``retired_bytes``.
        windows: a dict for each group, with ``windows``, ``bytes``, ``pinned``, ``deferred``, ``refused``.
        scopes: a dict for each thread that is in scopes of a pool, the longest first, with ``group``, ``pool``,
            ``device``, ``thread``, ``depth``, ``seconds``.

    """
    from tracehook.hook.service import service

    return cast("Status", service().status())


def attach_communicator(pointer: int, *, device: int | None = None, name: str | None = None) -> bool:
    """Register segments, as with any other, with a communicator whose birth tracehook did not see.

    Call it in two cases: other code than torch made the communicator before the program enabled tracehook, or that
    code had looked up the functions of NCCL before. After that tracehook sees each new communicator, whoever makes it:
    torch, ctypes (pynccl), or a library that links NCCL. Then this call is not needed, and one line on stderr says so.

    Call it when the communicator is ready, and call :func:`detach_communicator` before its owner destroys it, because
    tracehook sees neither. While segments come or go, no other thread may be in NCCL with this communicator, because
    its calls do not pass tracehook.

    Args:
        pointer: the raw ``ncclComm_t``.
        device: its CUDA device index; the current device if None.
        name: any text that is equal on all its ranks and different for each communicator. tracehook makes the log's
            key from it. If None, tracehook takes the count of such calls, which is equal on all ranks if all attach
            in the same order.

    Returns:
        True; False if tracehook knows the communicator already.

    Raises:
        ValueError: `pointer` is no address.
        RuntimeError: tracehook is not enabled, or torch has no NCCL.

    """
    from tracehook.hook.service import service
    from tracehook.symmetric_memory.handle import handle

    return service().attach_communicator(handle(pointer), device, name)


def use_store(store: Store | None) -> None:
    """Name the store at which ranks compare the windows of communicators that torch did not make.

    Programs that initialise ``torch.distributed`` need no such call: the default group's store serves. Other programs
    call it on all ranks, before they register the first window.

    Args:
        store: a store that all ranks of the job share; None: the default group's again.

    """
    from tracehook.hook.groups import use_store as choose

    choose(store)


def detach_communicator(pointer: int) -> bool:
    """Deregister everything from an attached communicator, which must still be alive.

    Args:
        pointer: the raw ``ncclComm_t`` that the program gave to :func:`attach_communicator`.

    Returns:
        True; False if tracehook does not know it.

    """
    from tracehook.hook.service import service
    from tracehook.symmetric_memory.handle import handle

    return service().detach_communicator(handle(pointer))

"""SGLang (0.5.11 or newer): tracehook's scopes in the place of its contexts of symmetric memory; its sleep."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Any

import torch

from tracehook import _core
from tracehook.integrations import choice, sleep
from tracehook.integrations.replacing import replace, when_imported
from tracehook.integrations.serving import ServerContext, is_in_pools, scope_of
from tracehook.symmetric_memory.public import is_symmetric
from tracehook.symmetric_memory.reserve import reserve

MODULE = "sglang.srt.distributed.device_communicators.pynccl_allocator"
# Where it releases its memory, in newer and in older versions.
UPDATERS = (
    "sglang.srt.managers.scheduler_components.weight_updater",
    "sglang.srt.managers.scheduler_update_weights_mixin",
)
_SLEEPS = {"kv_cache", "weights"}  # what it released when no request can be served, and no weights be written
_SMALL = 16 << 20  # bytes that prealloc_symmetric_memory_pool reserves for tensors of up to 1 MiB


def install() -> None:
    """Replace names of SGLang's module, by SGLang's own registry of hooks where it has one, and follow its sleep."""
    module = importlib.import_module(MODULE)
    wanted = {name: new for name, new in replacements(module).items() if hasattr(module, name)}
    try:
        hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    except ImportError:
        replace(module, wanted)
    else:
        for name, new in wanted.items():
            hooks.HookRegistry.register(f"{MODULE}.{name}", new, hooks.HookType.REPLACE)
    choice.say_replaced("sglang", MODULE, list(wanted))
    for updater in UPDATERS:
        when_imported(updater, _follow_sleep)


def _follow_sleep(module: ModuleType) -> None:
    methods = ("release_memory_occupation", "resume_memory_occupation")
    sleep.follow(module, *methods, lambda updater: set(updater.offload_tags) >= _SLEEPS)


class _OfThread(threading.local):
    """The contexts that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []


def replacements(module: ModuleType) -> dict[str, Any]:
    """Return what takes the place of names of SGLang's module. Where tracehook has no memory, SGLang's own serves.

    The others stay: ``use_symmetric_memory`` decides whether there is a context, and makes one of the class below.
    """
    theirs = dict(vars(module))
    mine = _OfThread()
    ending: list[Any] = []  # contexts of all threads that are at their end

    class SymmetricMemoryContext(ServerContext):
        """A scope of tracehook on the communicator of a group coordinator."""

        def __init__(self, group_coordinator: Any) -> None:
            self.group_coordinator = group_coordinator
            super().__init__(group_coordinator, lambda: theirs["SymmetricMemoryContext"](group_coordinator))

        def __enter__(self) -> Any:
            super().__enter__()
            if self.is_of_tracehook:
                mine.contexts.append(self)
            return self

        def __exit__(self, *raised: Any) -> None:
            if not self.is_of_tracehook:
                return super().__exit__(*raised)
            mine.contexts.pop()
            ending.append(self)
            try:
                super().__exit__(*raised)
            finally:
                ending.remove(self)

    def describe_registration_in_progress() -> str | None:
        """Return which group registers now, for SGLang's watchdog."""
        for context in ending[:1]:
            group = context.group_coordinator
            return f"comm={group.pynccl_comm.comm.value} group={group.unique_name}"
        theirs_now: str | None = _call("describe_registration_in_progress")
        return theirs_now

    def disable_symmetric_memory_context() -> Any:
        """Give the thread ordinary memory, on this rank alone: the scope goes on for the other ranks."""
        if not mine.contexts:
            return _call("disable_symmetric_memory_context")
        _core.enter_outside(False)
        return mine.contexts[-1]

    def restore_symmetric_memory_context(saved_context: Any) -> None:
        """Undo what returned `saved_context`."""
        if isinstance(saved_context, SymmetricMemoryContext):
            _core.leave_outside()
        else:
            _call("restore_symmetric_memory_context", saved_context)

    def is_tensor_in_symmetric_mempool(tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage lies in tracehook's pools."""
        found = is_in_pools(tensor.untyped_storage().data_ptr())
        return found or bool(_call("is_tensor_in_symmetric_mempool", tensor))

    def prealloc_symmetric_memory_pool(**given: Any) -> None:
        """Make SGLang's large piece, in our context, and some memory for tensors of up to 1 MiB."""
        _call("prealloc_symmetric_memory_pool", **given)
        size = module.envs.SGLANG_SYMM_MEM_PREALLOC_GB_SIZE.get()
        if given["is_draft_worker"] or not given["enable_symm_mem"] or size <= 0:
            return
        group = importlib.import_module("sglang.srt.distributed.parallel_state").get_tp_group()
        context = module.use_symmetric_memory(group)
        if isinstance(context, SymmetricMemoryContext) and context.is_of_tracehook:
            with torch.get_device_module(given["device"]).stream(given["forward_stream"]):
                reserve(0, communicator=group, graph=True, small_nbytes=_SMALL)

    def allocate_symmetric_buffer(comm: Any, nbytes: int) -> tuple[torch.Tensor, bool]:
        """Return zeroed bytes in a window of the communicator, and whether there is a window."""
        with torch.cuda.device(comm.device):
            scope = scope_of(comm, graph=False)
            if scope is None:
                found: tuple[torch.Tensor, bool] = _call("allocate_symmetric_buffer", comm, nbytes)
                return found
            with scope:
                made = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            return made.zero_(), is_symmetric(made, communicator=comm)

    def _call(name: str, *given: Any, **named: Any) -> Any:
        return theirs[name](*given, **named) if name in theirs else None

    ours: list[Any] = [
        SymmetricMemoryContext,
        describe_registration_in_progress,
        disable_symmetric_memory_context,
        restore_symmetric_memory_context,
        is_tensor_in_symmetric_mempool,
        prealloc_symmetric_memory_pool,
        allocate_symmetric_buffer,
    ]
    return {new.__name__: new for new in ours}

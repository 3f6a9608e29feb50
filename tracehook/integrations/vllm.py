"""vLLM: tracehook's scopes in the place of its context of symmetric memory; what tracehook does when vLLM sleeps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from tracehook.integrations import choice, sleep
from tracehook.integrations.replacing import replace, when_imported
from tracehook.integrations.serving import ServerContext, is_in_pools

MODULE = "vllm.distributed.device_communicators.pynccl_allocator"
WORKER = "vllm.v1.worker.gpu_worker"


def install() -> None:
    """Replace names of vLLM's module as soon as it is imported, and follow the sleep of its workers."""
    when_imported(MODULE, _replace)
    when_imported(WORKER, lambda module: sleep.follow(module, "sleep", "wake_up"))


def _replace(module: ModuleType) -> None:
    choice.say_replaced("vllm", MODULE, replace(module, replacements(module)))


def replacements(module: ModuleType) -> dict[str, Any]:
    """Return what takes the place of names of vLLM's module. Where tracehook has no memory, vLLM's own serves."""
    theirs = module.nccl_symm_mem_context
    is_theirs = module.is_symmetric_memory_tensor

    class nccl_symm_mem_context(ServerContext):
        """A scope of tracehook on a communicator of vLLM; nothing, where vLLM's own would be nothing."""

        def __init__(self, pynccl_comm: Any, disabled: bool = False) -> None:
            self.disabled = (
                disabled
                or not module.is_symmetric_memory_enabled()
                or pynccl_comm.world_size == 1
                or not module.current_platform.is_cuda()
            )
            self.pynccl_comm = None if self.disabled else pynccl_comm
            if not self.disabled:
                super().__init__(pynccl_comm, lambda: theirs(pynccl_comm))

        def __enter__(self) -> Any:
            return self if self.disabled else super().__enter__()

        def __exit__(self, *raised: Any) -> None:
            if not self.disabled:
                super().__exit__(*raised)

    def is_symmetric_memory_tensor(tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage lies in tracehook's pools."""
        if not module.is_symmetric_memory_enabled():
            return False
        return is_in_pools(tensor.untyped_storage().data_ptr()) or bool(is_theirs(tensor))

    return {new.__name__: new for new in (nccl_symm_mem_context, is_symmetric_memory_tensor)}

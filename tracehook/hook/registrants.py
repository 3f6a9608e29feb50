"""Who registers segments with a communicator: tracehook, torch by itself (which is recorded), or nobody.

torch's process group "nccl2", its default from 2.15 on, registers every segment with each of its communicators, and has
no switch for that. A second registration of ours would change nothing and cost its time.
"""

from __future__ import annotations

import os
from typing import Any

_REGISTERS_BY_ITSELF = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")

_SWITCHES_OF_TORCH = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")


def torch_hook_is_on() -> bool:
    """Whether the environment has torch's stock group register segments too."""
    return any(os.environ.get(name, "").lower() in ("1", "y", "yes", "t", "true") for name in _SWITCHES_OF_TORCH)


def registers_itself(backend: Any) -> bool:
    """Whether this backend of a process group registers segments; for communicators whose making was not seen."""
    return type(backend).__name__ in _REGISTERS_BY_ITSELF

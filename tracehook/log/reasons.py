"""Why the hook cannot follow the allocator, or stands aside: number in the log, sentence for people."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """One row: the event it is logged as, a constant name, and a sentence that says what to do."""

    event: str
    name: str
    advice: str


# 1 to 3 are given by the native side (cpp/process.h, enum Reason); the others by service.py.
REASONS = {
    1: Reason(
        "hook.unsupported",
        "expandable_segments",
        "expandable segments change their size in place, which no registration with NCCL can, so they are logged, not "
        "registered: remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF",
    ),
    2: Reason(
        "hook.unsupported",
        "no_caching",
        "the caching allocator is off, so there are no segments to follow: unset PYTORCH_NO_CUDA_MEMORY_CACHING",
    ),
    3: Reason(
        "hook.unsupported",
        "foreign_allocator",
        "the current CUDA allocator is not torch's native one and reports no segments: remove "
        "backend:cudaMallocAsync from PYTORCH_CUDA_ALLOC_CONF, or do not change the current allocator",
    ),
    4: Reason(
        "hook.unsupported",
        "no_cuda",
        "this torch is a build without CUDA: install a CUDA build of torch",
    ),
    5: Reason(
        "hook.unsupported",
        "no_hook_library",
        "there is no hook library for this torch: compile one with `tracehook build-hook`",
    ),
    6: Reason(
        "hook.unsupported",
        "attach_failed",
        "attaching to the allocator failed: run `tracehook doctor`",
    ),
    7: Reason(
        "hook.unsupported",
        "no_nccl",
        "no NCCL is loaded in this process, so there are no communicators to follow",
    ),
    8: Reason(
        "hook.conflict",
        "torch_hook",
        "torch's own registration hook is on too, so tracehook records what that registers, and registers nothing: "
        "unset TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    ),
}


def reason_of(number: int, event: str) -> Reason:
    """Return the reason with that number, which an event has; a later version may know more of them."""
    return REASONS.get(number, Reason(event, f"reason {number}", "see the log"))


def number_of(name: str) -> int:
    """Return the number of the reason called `name`."""
    return next(number for number, reason in REASONS.items() if reason.name == name)

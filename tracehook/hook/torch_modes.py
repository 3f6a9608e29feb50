"""What a program puts around torch's functions, such as fake tensors, and how tracehook's own calls go past it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def past_modes() -> Iterator[None]:
    """Hide from the modes of the calling thread what tracehook asks of torch inside of the `with` block.

    It imports late, because these modules of torch take long.
    """
    import torch

    with contextlib.ExitStack() as around:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            around.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack():
            from torch.utils._python_dispatch import _disable_current_modes

            around.enter_context(_disable_current_modes())
        around.enter_context(torch._C.DisableTorchFunction())
        yield


def empty_bytes(size: int, device: int | None = None) -> Any:
    """Return bytes on a CUDA device, the current one if None, also where the program has replaced ``torch.empty``."""
    import torch

    empty: Any = torch._C._VariableFunctions.empty
    return empty(size, dtype=torch.uint8, device="cuda" if device is None else torch.device("cuda", device))

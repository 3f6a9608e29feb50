"""Values of a rehearsal: what PyTorch's operations compute, computed on the host for emulated devices."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tracehook.hook import library

VARIABLE = "TRACEHOOK_EMU_VALUES"  # the most elements of a tensor that is computed; 0: nothing is
DEFAULT = 1 << 24
_MOST_NAMES = 6
_REASONS = {
    "no-kernel": "PyTorch computes these on devices only",
    "large": "larger than --values allows",
    "sizes": "the host's kernel gives other sizes",
    "values": "the host's kernel refused their values",
}


class UnreadableLimit(ValueError):
    """A limit for values is neither a number nor ``off``."""


def limit_of(text: str) -> int:
    """Return the limit, in elements, that ``--values`` names: a number such as 1000000 or 1e9, or ``off``."""
    if text == "off":
        return 0
    try:
        limit = int(float(text))
    except (ValueError, OverflowError):
        limit = -1
    if limit < 0:
        raise UnreadableLimit(f"{text!r}: expected a number of elements, such as 1e8, or off")
    return limit


def begin() -> None:
    """Replace the CUDA kernels of the torch that this process has imported, if it is part of a rehearsal.

    Says one line on stderr, and leaves the kernels as they are, if there is no library for this torch.
    """
    torch = sys.modules["torch"]
    if not os.environ.get(VARIABLE) or torch.version.cuda is None:
        return
    _leave_out_cudnn(torch)
    minor = library.minor_of(torch.__version__)
    path = library.directory() / "_emulated" / f"libtracehook_values{minor}.so"
    try:
        compute = ctypes.CDLL(str(path)).tracehook_compute_values
    except OSError as problem:
        reason = str(problem) if path.exists() else f"this installation has none for torch {minor}"
        print(f"rehearsal: no computed values: {reason}; kernels do nothing", file=sys.stderr)
        return
    error = ctypes.create_string_buffer(500)
    if compute(error, len(error)) < 0:
        print(f"rehearsal: no computed values: {error.value.decode()}; kernels do nothing", file=sys.stderr)


def _leave_out_cudnn(torch: Any) -> None:
    """Have attention choose among the other kernels, also where the program asks for that of cuDNN first."""
    torch._C._set_sdp_use_cudnn(False)
    torch._C._set_sdp_use_cudnn = lambda _enabled: None


def uncomputed(scratch: Path) -> str:
    """Return in one line what the processes of a rehearsal did not compute, by the files that they left; "" if all."""
    names: dict[str, set[str]] = defaultdict(set)
    for path in scratch.glob("uncomputed.*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            reason, _, name = line.partition(" ")
            names[reason].add(name)
    beside = names.pop("kernel", None)
    told = [f"{_listed(sorted(names[reason]))} ({words})" for reason, words in _REASONS.items() if reason in names]
    lines = [f"not computed, so NaN, or 0 in integers: {'; '.join(told)}"] if told else []
    if beside:
        lines.append(f"not computed, and what they should write is wrong without a sign: {_listed(sorted(beside))}")
    return "; ".join(lines)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more

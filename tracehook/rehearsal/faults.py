"""Faults that a rehearsal plays (cpp/rehearsal/cuda/faults.h): whether they can be played, and which were not."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tracehook.rehearsal import emulation

_SYNTAX = re.compile(
    r"(?P<call>p?nccl\w+|cu\w+):(?:fail@(?:\*|\d{1,9})(?:=\d{1,9})?|(?:slow|in_progress)@(?:\*|\d{1,9})=\d{1,9}(?:us|ms|s))"
    r"(?:#rank\d{1,9})?"
)
_CALL = re.compile(rb"(?<=[\0p])(?:nccl|cu|cuda)[A-Z]\w*(?=\0)")
_LIBRARIES = ("libnccl.so.2", "libcudart_emulated.so")


def calls() -> list[str]:
    """Return the calls of the emulated NCCL and CUDA."""
    found = {name for each in _LIBRARIES for name in _CALL.findall((emulation.directory() / each).read_bytes())}
    return sorted(name.decode() for name in found)


def problem_of(faults: str) -> str:
    """Return why a list of faults cannot be played, in one line; empty if it can."""
    known = calls()
    for item in faults.split(","):
        found = _SYNTAX.fullmatch(item)
        if found is None:
            return (
                f"cannot read {item!r}: write CALL:fail@N=RESULT, CALL:slow@N=50ms or CALL:in_progress@N=500ms, N a "
                "number or *, with #rankR for one rank only"
            )
        call = found["call"].removeprefix("p")
        if call not in known:
            close = difflib.get_close_matches(call, known, n=1)
            meant = f": is {close[0]} meant?" if close else ""
            return f"{item!r}: the emulation has no call {found['call']}{meant}"
    return ""


def not_played(faults: str, scratch: Path) -> list[str]:
    """Return the faults of a list that no process came to, by what the emulation left in its directory."""
    played = {line for path in scratch.glob("played.*") for line in path.read_text(encoding="utf-8").splitlines()}
    return [item for item in dict.fromkeys(faults.split(",")) if item not in played]

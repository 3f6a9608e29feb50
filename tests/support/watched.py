"""What the tests of ``tracehook watch`` share: a clock that they turn, the picture as text, and the head of a ring."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace

import pytest
from rich.console import Console

from tracehook.audit import live, live_process
from tracehook.audit.live import Follower
from tracehook.commands import watch_table


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return what the test says."""
        return self.now


def stop_wall_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Clock:
    """Let the wall clock stand still, so that no age is how long the test took; return a clock to be turned."""
    for module in (live, live_process):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: float(seconds)))
    return Clock()


def rendered(follower: Follower, width: int, *how: object) -> str:
    """Return the picture as text."""
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(watch_table.picture(follower, *how))  # type: ignore[arg-type]
    return console.export_text()


def ring_header(
    pushed: int, drained: int, dropped: int = 0, looked_ns: int = 0, epoch_ns: int = 0, pid: int = 10
) -> bytes:
    """Return the head of a ring for 64 events."""
    counts = (64, pushed, drained, dropped, epoch_ns, pid, looked_ns)
    return struct.pack("<8sIIQQQQQQQ", b"THRING02", 4096, 96, *counts).ljust(4096, b"\0")

"""The built-in policy ``shared``."""

from __future__ import annotations

from tracehook.policies.base import Answer, Request


def choose(_: Request) -> Answer:
    """One pool for all groups of the same ranks: least memory, more windows.

    What one group frees, the next one uses. In return tensors of several groups may lie in one segment, and a window
    covers whole segments: every group that uses the pool may need windows on segments that others filled.
    """
    return Answer.SHARED

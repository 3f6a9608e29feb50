"""What the modules of symmetric memory answer alike: the form of an explanation, and sentences that several use."""

from __future__ import annotations

from typing import NamedTuple

ENDED = "it was aborted, or is being destroyed, or waits to be configured"


class Explanation(NamedTuple):
    """Answer of :func:`tracehook.explain`: whether the tensor is symmetric, a constant reason code, and a sentence."""

    symmetric: bool
    reason: str
    text: str

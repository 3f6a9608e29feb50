"""What the modules of symmetric memory answer alike: the form of an explanation, sentences that several use."""

from __future__ import annotations

from typing import NamedTuple

from tracehook.log.journal import warn

ENDED = "it was aborted, or is being destroyed, or waits to be configured"


class Explanation(NamedTuple):
    """Answer of :func:`tracehook.explain`: whether the tensor is symmetric, a constant reason code, and a sentence."""

    symmetric: bool
    reason: str
    text: str


_MOST_SAID = 1000
_said: set[str] = set()


def say_once(text: str) -> None:
    """Say one line on stderr, the first time.

    Each refusal of a call says its own: torch puts lines of its own before ours, and others seldom show ours at all.
    """
    if text not in _said and len(_said) < _MOST_SAID:
        _said.add(text)
        warn(text)

"""The built-in policy ``isolated``, the default."""

from __future__ import annotations

from tracehook.policies.base import Answer, Request


def choose(_: Request) -> Answer:
    """A pool for each group: fewer windows, more memory.

    A segment belongs to one group (or to scopes of several groups), so no other group needs a window on it, and none
    moves its places: which threads make scopes does not matter. In return no group can use what another one has freed,
    and each keeps partly filled segments of its own.
    """
    return Answer.ISOLATED

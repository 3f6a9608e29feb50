"""The built-in policy ``isolated``, the default."""

from __future__ import annotations

from tracehook.policies.base import Answer, Request


def choose(_: Request) -> Answer:
    """A pool for each group: fewer windows, more memory.

    A segment belongs to one group (or to scopes of several groups). So no other group needs a window on it, and no
    other group moves its places, whichever threads make the scopes. In return a group cannot use memory that another
    group freed, and each group has partly filled segments.
    """
    return Answer.ISOLATED

"""The built-in policy ``isolated``."""

from __future__ import annotations

from tracehook.policies.base import Answer, Request


def choose(_: Request) -> Answer:
    """A pool for each group: fewer windows, more memory.

    A segment belongs to one group (or one set of groups that were named together), so no other group needs a window on
    it. In return no group can use what another one has freed, and each keeps partly filled segments of its own.
    """
    return Answer.ISOLATED

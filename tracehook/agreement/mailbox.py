"""The mailbox of a host: shared memory in which the ranks of one host bundle their posts. It decides nothing.

Two ranks share a host if they see one ``/dev/shm`` under one user, so containers with memory of their own count as
hosts of their own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from tracehook import _core
from tracehook.agreement import leftovers

PATIENCE = 0.3  # seconds that a rank waits at the mailbox before it goes to the store; less than alarms.PATIENCE


@functools.cache
def shared_memory_domain() -> str:
    """Return what names this host among those of the job; empty if there is no shared memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        mount = leftovers.SHARED_MEMORY.stat()
    except OSError:
        return ""
    return _digest(f"{boot} {mount.st_dev} {mount.st_ino} {os.getuid()}")[:16]


class HostMailbox:
    """The mailbox of one sequence of rounds on one host. One that cannot be opened is one that nobody uses."""

    def __init__(self, prefix: str, neighbours: Sequence[int], rank: int) -> None:
        self._neighbours = neighbours
        self._mailbox: _core.HostMailbox | None = None
        if len(neighbours) > 1:
            leftovers.remove_once()
            path = leftovers.SHARED_MEMORY / f"{leftovers.PREFIX}{_digest(f'{prefix} {neighbours[0]}')[:32]}"
            # A file system that is full or read-only means no mailbox: the store serves as well.
            with contextlib.suppress(OSError):
                self._mailbox = _core.HostMailbox(str(path), len(neighbours), neighbours.index(rank))

    def post(self, number: int, text: str) -> None:
        """Show the neighbours what this rank comes with."""
        if self._mailbox is not None:
            self._mailbox.post(_round(number), text)

    def gather(self, number: int, patience: float) -> dict[int, str]:
        """Return what the neighbours have come with, by rank; empty if not all come within `patience` seconds."""
        box = self._mailbox
        texts = box.gather(_round(number), patience) if box is not None and self.is_complete else []
        return dict(zip(self._neighbours, texts, strict=True)) if texts and all(texts) else {}

    @property
    def is_complete(self) -> bool:
        """Whether all neighbours have opened it. It stays so."""
        return self._mailbox is not None and self._mailbox.is_complete

    def speak(self, number: int) -> None:
        """Tell the neighbours that all their posts are in the store, so that they can wait here for the verdict."""
        if self._mailbox is not None:
            self._mailbox.publish(_round(number) - 1, "")

    def has_spoken(self, number: int) -> bool:
        """Whether all posts of this host are in the store, as far as the mailbox still shows it."""
        if self._mailbox is None or not self.is_complete:
            return False
        return any(self._mailbox.published(shown, 0.0) is not None for shown in (_round(number) - 1, _round(number)))

    def publish(self, number: int, text: str) -> None:
        """Show the neighbours the verdict."""
        if self._mailbox is not None:
            self._mailbox.publish(_round(number), text)

    def published(self, number: int, patience: float) -> str:
        """Return the verdict that the speaker shows; empty if there is none within `patience` seconds."""
        if self._mailbox is None or not self.is_complete:
            return ""
        return self._mailbox.published(_round(number), patience) or ""


def _round(number: int) -> int:
    """Return the number of a round in the mailbox, which has two texts for all: "spoken" one before, the verdict."""
    return 2 * number + 1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

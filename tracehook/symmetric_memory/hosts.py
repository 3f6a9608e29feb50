"""Which ranks share a host, and the board in shared memory on which they meet.

A rank names its host in its posts until all ranks know who shares one. Two ranks share a host if they see one
``/dev/shm`` under one user, so containers with memory of their own count as hosts of their own.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tracehook import _core

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "tracehook-"
PATIENCE = 0.3  # seconds that a rank waits on the board before it goes to the store; less than question.PATIENCE


@functools.cache
def own_host() -> str:
    """Return what names this host among those of the job; empty if there is no shared memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        mount = SHARED_MEMORY.stat()
    except OSError:
        return ""
    return _digest(f"{boot} {mount.st_dev} {mount.st_ino} {os.getuid()}")[:16]


def numbered(hosts: Sequence[str]) -> list[int]:
    """Return for each rank the number of its host, in the order in which they appear; empty if some rank named none."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts] if all(hosts) else []


def packed(numbers: Sequence[int]) -> str:
    """Return the numbers as a short text: every rank of the job reads it, and most often they follow a pattern."""
    steps = [number - before for before, number in itertools.pairwise([0, *numbers])]
    return base64.b85encode(zlib.compress(json.dumps(steps).encode())).decode() if numbers else ""


def unpacked(text: str) -> list[int]:
    """Return the numbers that :func:`packed` made into that text."""
    return list(itertools.accumulate(json.loads(zlib.decompress(base64.b85decode(text))))) if text else []


def by_host(numbers: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each host, ascending, if each rank's host has that number."""
    ranks = defaultdict(list)
    for rank, number in enumerate(numbers):
        ranks[number].append(rank)
    return list(ranks.values())


class Hosts(NamedTuple):
    """Who shares a host, as one rank sees it."""

    speakers: Sequence[int] = ()  # the first rank of each host, ascending; empty if no two ranks share one
    neighbours: Sequence[int] = ()  # the ranks of this rank's host, ascending; empty if it is alone there


def seen_by(rank: int, numbers: Sequence[int]) -> Hosts:
    """Return who shares a host, if each rank's host has that number."""
    hosts = by_host(numbers)
    if len(hosts) == len(numbers):
        return Hosts()
    neighbours = next(ranks for ranks in hosts if numbers[ranks[0]] == numbers[rank])
    return Hosts([ranks[0] for ranks in hosts], neighbours if len(neighbours) > 1 else ())


class Board:
    """The board of one sequence of rounds on one host. A board that cannot be opened is one on which nobody meets."""

    def __init__(self, prefix: str, neighbours: Sequence[int], rank: int) -> None:
        self._neighbours = neighbours
        self._board: _core.HostBoard | None = None
        if len(neighbours) > 1:
            path = SHARED_MEMORY / f"{PREFIX}{_digest(f'{prefix} {neighbours[0]}')[:32]}"
            # A file system that is full or read-only means no board: the store serves as well.
            with contextlib.suppress(OSError):
                self._board = _core.HostBoard(str(path), len(neighbours), neighbours.index(rank))

    def post(self, number: int, text: str) -> None:
        """Show the neighbours what this rank comes with."""
        if self._board is not None:
            self._board.post(_round(number), text)

    def gather(self, number: int, patience: float) -> dict[int, str]:
        """Return what the neighbours have come with, by rank; empty if not all come within `patience` seconds."""
        texts = self._board.gather(_round(number), patience) if self._board is not None and self.is_complete else []
        return dict(zip(self._neighbours, texts, strict=True)) if texts and all(texts) else {}

    @property
    def is_complete(self) -> bool:
        """Whether all neighbours have opened it. It stays so."""
        return self._board is not None and self._board.is_complete

    def newest(self) -> dict[int, str]:
        """Return the last text of each neighbour, by rank, whatever its round is; none of those that have no text."""
        texts = self._board.newest() if self._board is not None else []
        return {rank: text for rank, text in zip(self._neighbours, texts, strict=False) if text}

    def speak(self, number: int) -> None:
        """Tell the neighbours that all their posts are in the store, so that they can wait here for the verdict."""
        if self._board is not None:
            self._board.publish(_round(number) - 1, "")

    def has_spoken(self, number: int) -> bool:
        """Whether all posts of this host are in the store, as far as the board still shows it."""
        if self._board is None or not self.is_complete:
            return False
        return any(self._board.published(shown, 0.0) is not None for shown in (_round(number) - 1, _round(number)))

    def publish(self, number: int, text: str) -> None:
        """Show the neighbours the verdict."""
        if self._board is not None:
            self._board.publish(_round(number), text)

    def settle(self, number: int, text: str) -> bool:
        """Let this verdict stand for all, unless the board is closed; tell whether it stands."""
        if self._board is None:
            return False
        # Where it does not (it may be too long, too) nobody need wait for it here.
        return self._board.settle(_round(number), text) or self._board.close(_round(number)) is not None

    def settled(self, number: int, patience: float) -> str:
        """Return the verdict that stands; empty if there is none within `patience` seconds."""
        if self._board is None or not self.is_complete:
            return ""
        return self._board.settled(_round(number), patience) or ""

    def close(self, number: int) -> str | None:
        """See to it that nothing more is settled here; if round `number` was before, return its verdict instead."""
        # Also while the board is not complete: it may be, a moment later.
        return self._board.close(_round(number)) if self._board is not None else None

    @property
    def is_closed(self) -> bool:
        """Whether nothing is settled here any more."""
        return self._board is not None and self._board.is_closed

    def published(self, number: int, patience: float) -> str:
        """Return the verdict that the speaker shows; empty if there is none within `patience` seconds."""
        if self._board is None or not self.is_complete:
            return ""
        return self._board.published(_round(number), patience) or ""


def _round(number: int) -> int:
    """Return the number of a round on the board, which has two texts for all: "spoken" one before, and the verdict."""
    return 2 * number + 1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

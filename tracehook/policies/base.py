"""What a policy is asked and what it may answer.

**A policy answers from what is equal on all ranks of the groups, and from nothing else**: the names, members and sizes
of the groups, the operation, the size and the graph flag, which the program gives alike on every rank. Never from what
is this rank's own: its device index, its free memory, its clock, a random number, a file that only one host has. Ranks
that choose differently do not meet: one waits for a window that another never makes. The agreement, which comes before
any collective call, then fails with the names of those ranks and registers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tracehook.log.tables import ANSWERS


class Answer(Enum):
    """Where the memory comes from.

    SHARED: from the one pool of the device that all groups share.
    ISOLATED: from a pool that only this group (or this set of groups) uses.
    NONE: from ordinary memory, without a pool of ours and without a window.
    """

    SHARED, ISOLATED, NONE = ANSWERS


@dataclass(frozen=True)
class Request:
    """For whom, where and for what memory is wanted. Equal requests get equal answers: a policy is asked once."""

    groups: tuple[str, ...]
    """torch's names of the process groups, in the order in which the program gave them."""

    ranks: tuple[int, ...]
    """Number of ranks of each group, in the same order."""

    device: int
    """CUDA device index. This rank's own, so it may be written to a log but must not decide the answer."""

    operation: str | None = None
    """The collective that the memory is meant for, such as ``"all_reduce"``; None if the program did not say."""

    nbytes: int | None = None
    """About how much memory will be wanted, in bytes; None if the program did not say."""

    graph: bool = False
    """Whether a captured CUDA graph will use the memory, so that it has to stay where it is."""

    descriptions: tuple[str | None, ...] = ()
    """What the program calls each group: its ``group_desc``, or the name of the dimension of its mesh; None without."""

    members: tuple[tuple[int, ...], ...] = ()
    """Global ranks of each group, in its order; empty if torch does not know them. Equal on all ranks of that group."""

    dtype: str | None = None
    """torch's name of the elements' type, such as ``"bfloat16"``; None if the program did not say."""


class Expectation(NamedTuple):
    """What a policy expects of one call, for the log."""

    nbytes: int
    """Bytes for which it was measured."""
    plain_us: float
    """Microseconds in plain memory."""
    symmetric_us: float
    """Microseconds in symmetric memory."""


class Policy(Protocol):
    """A function that answers a request, or abstains.

    It must answer from what is equal on all ranks only (see above), must not allocate device memory or call a
    collective, and should return quickly. An exception is reported once and counts as an abstention.

    It may have two functions more. ``fingerprint() -> str`` says in words what else its answers depend on, such as the
    digest of a file: the ranks of a group compare that once, before it is asked for the group the first time. If it
    differs, or raises, all of them go on as if the policy abstained, and so they do in scopes of several groups.
    ``expects(request) -> Expectation | None`` says what the answer is based on; it stands in the log as
    ``policy.expected``.
    """

    def __call__(self, request: Request, /) -> Answer | None:
        """Return where the memory comes from, or None to leave the answer to the next policy."""

"""The question to a policy (`Request`) and its possible answers (`Answer`); see docs/policies.md.

**A policy answers from facts that are equal on all ranks of the groups, and from nothing else**: the names, members and
sizes of the groups, the operation, the size and the graph flag, which the program gives alike on every rank. It never
answers from facts of one rank: its device index, its free memory, its clock, a random number, a file that only one host
has. If ranks choose differently, one waits for a window that another never makes. The agreement comes before any
collective call. It then fails, names those ranks, and registers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tracehook.log.tables import ANSWERS
from tracehook.nccl.effect import Threshold as Threshold  # what `pays` returns


class Answer(Enum):
    """Where the memory comes from.

    SHARED: from the pool of the device that all groups of the same ranks share.
    ISOLATED: from a pool that only this group uses; for several groups, only scopes of groups with these ranks.
    NONE: from ordinary memory, without a pool of ours and without a window.
    """

    SHARED, ISOLATED, NONE = ANSWERS


@dataclass(frozen=True)
class Request:
    """Which groups want memory, on which device and for which use. tracehook asks a policy once for equal requests."""

    groups: tuple[str, ...]
    """torch's names of the process groups, in the order in which the program gave them."""

    ranks: tuple[int, ...]
    """Number of ranks of each group, in the same order."""

    device: int
    """CUDA device index. This rank's own, so it may be written to a log but must not decide the answer."""

    operation: str | None = None
    """The collective that will use the memory, such as ``"all_reduce"``; None if the program did not say."""

    nbytes: int | None = None
    """About how many bytes the program will want; None if it did not say."""

    graph: bool = False
    """Whether a captured CUDA graph will use the memory, so that it has to stay where it is.

    The program gave ``graph=True``, or an `operation` in a capture of the current stream.
    """

    descriptions: tuple[str | None, ...] = ()
    """The program's name of each group: its ``group_desc``, or the dimension of its mesh; None if it has neither."""

    members: tuple[tuple[int, ...], ...] = ()
    """Global ranks of each group, in its order; empty if torch does not know them. Equal on all ranks of that group."""

    dtype: str | None = None
    """torch's name of the elements' type, such as ``"bfloat16"``; None if the program did not say."""


class Policy(Protocol):
    """A function that answers a request, or abstains.

    It must answer only from facts that are equal on all ranks (see above). It must not allocate device memory or call a
    collective, and should return quickly. tracehook prints an exception once, and takes it for an abstention.

    It may have more functions. ``fingerprint() -> str`` says in words on which other facts its answers depend, such
    as the digest of a file. The ranks of a group compare these words once, before they ask the policy for the group
    the first time. If the words differ, or the function raises, all ranks go on as if the policy abstained. They do
    the same in scopes of several groups. ``pays(operation) -> Threshold | None`` returns from how many bytes on
    calls of ``"all_gather"``, ``"all_to_all"`` or ``"send"`` run on registered memory, or None to leave the answer
    to the next policy. tracehook asks it once, when CUDA comes up, and only if SYMM_REGISTER_MEMORY is vmm. Nobody
    compares these answers: a policy gives equal ones on all ranks of a host, or calls hang.
    """

    def __call__(self, request: Request, /) -> Answer | None:
        """Return where the memory comes from, or None to leave the answer to the next policy."""

"""Samples of a communicator's digests: of one rank, and what the samples of all ranks have in common.

A sample has digests by the number of the call after which they stood. Ranks make calls while others take samples, so
two samples share some calls only. Combining keeps those, and None where two digests differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracehook._core import Communicator

Sample = dict[int, int]

# A sample has the digests after the last calls whose numbers are multiples of these: ranks that are at different calls
# have some of them in common.
STRIDES = (1, 16, 256, 1024)
OF_EACH = 16
# What rank 0 reads is older than its own sample, by up to a period. So it remembers more of the rare calls than a rank
# sends: at 6,000 calls a second those of the last 20 seconds.
_REMEMBERED = 128
_SENT = 32


def taken(communicator: Communicator, calls: int) -> Sample:
    """Return the sample of a rank that has made so many calls."""
    wanted = {calls - 1 - (calls - 1) % stride - stride * step for stride in STRIDES for step in range(OF_EACH)}
    found = ((call, communicator.digests(call, call)[1]) for call in sorted(wanted) if call >= 0)
    return {call: values[0] for call, values in found if values}


def combined(samples: Sequence[Sample]) -> dict[int, int | None]:
    """Return the calls that all samples have: their digest, or None if two samples differ."""
    first, *others = samples
    return {
        call: value if all(other[call] == value for other in others) else None
        for call, value in first.items()
        if all(call in other for other in others)
    }


def written(sample: Sample) -> str:
    """Return the newest calls of a sample as text, of a size that is bounded."""
    return json.dumps(_newest(sample, _SENT))


def read(text: str | bytes) -> Sample:
    """Return the sample that :func:`written` made into that text."""
    return {int(call): value for call, value in json.loads(text).items()}


class Remembered:
    """The newest calls of several ranks."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._samples: dict[int, Sample] = {rank: {} for rank in ranks}

    def hear(self, rank: int, sample: Sample) -> None:
        """Add what a rank told."""
        self._samples[rank] = _newest(self._samples[rank] | sample, _REMEMBERED)

    def combined(self) -> dict[int, int | None]:
        """Return what all of them have in common; empty if one has told nothing yet."""
        return combined(list(self._samples.values()))


def _newest(sample: Sample, most: int) -> Sample:
    rare = sorted(call for call in sample if call % STRIDES[-1] == 0)[-most:]
    others = sorted(call for call in sample if call % STRIDES[-1])[-most:]
    return {call: sample[call] for call in sorted([*rare, *others])}

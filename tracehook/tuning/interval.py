"""Where the median of a noisy quantity lies, and whether that is enough to choose by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_REACH = 2.58  # standard deviations of a normal distribution that hold 99 of 100 cases
_ENOUGH = 0.992  # better of both / chosen: above the 0.99 that `measured` has to reach


class Interval(NamedTuple):
    """The median of samples, between two bounds that hold the true median in 99 of 100 cases."""

    low: float
    median: float
    high: float


def of_median(samples: Sequence[float]) -> Interval:
    """Return the interval by the order of the samples, whatever their distribution is.

    The samples have to be independent. How many of them lie below the true median is binomial; this takes the normal
    approximation of that.
    """
    found = sorted(samples)
    reach, middle = _REACH * math.sqrt(len(found)) / 2, (len(found) - 1) / 2
    low, high = max(0, math.floor(middle - reach)), min(len(found) - 1, math.ceil(middle + reach))
    return Interval(found[low], statistics.median(found), found[high])


def is_decided(gain: Interval, margin: float) -> bool:
    """Whether a choice between plain and symmetric memory is good enough wherever in the interval the true gain lies.

    `gain` is plain / symmetric, `margin` is that of the tuning table. A tie is decided too, once it is narrow: then
    both choices are good enough.
    """
    if gain.median * (1 - margin) > 1:  # symmetric memory is chosen
        return gain.low >= _ENOUGH
    return gain.high <= 1 / _ENOUGH

"""How long a collective takes, where the median of times lies, and a wait that ends when a rank is missing."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from tracehook.tuning.tuner_run import TunerRun

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


_MiB = 1 << 20
_POLL_SECONDS = 0.5
_WARM = 3  # turns before the first that counts


def calls_in_a_row(nbytes: int) -> int:
    """Return how many calls are timed together: about as many as take a millisecond. Alike on all ranks."""
    return next(calls for limit, calls in ((1, 40), (8, 20), (64, 4), (512, 2), (1 << 40, 1)) if nbytes <= limit * _MiB)


class Clock:
    """Times what runs on the current stream. All ranks time the same things in the same order."""

    def __init__(self, run: TunerRun, align: Callable[[], object]) -> None:
        """`align` puts something on the stream that no rank's device comes past before all ranks have come to it."""
        self._run, self._align = run, align
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds(self, act: Callable[[], object], calls: int) -> float:
        """Return the time of one of the `calls` calls that `act` puts on the stream."""
        self._align()
        self._begin.record()
        act()
        self._end.record()
        self.wait(self._end)
        return 1000 * float(self._begin.elapsed_time(self._end)) / calls

    def settle(self) -> None:
        """Wait for what is on the current stream; raises as :meth:`wait` does."""
        self._end.record()
        self.wait(self._end)

    def wait(self, event: torch.cuda.Event) -> None:
        """Wait until the device has come to the event.

        Raises:
            RegistrationError: some rank failed, or did not come in time.

        """
        began = polled = time.monotonic()
        while not event.query():
            now = time.monotonic()
            if now - polled > _POLL_SECONDS:
                polled = now
                self._run.look(now - began)
            elif now - began > 0.005:
                time.sleep(0.0005)


def repeated(act: Callable[[], object], calls: int, *, graph: bool) -> Callable[[], object]:
    """Return what calls `act` so many times, each time, or once now into a CUDA graph that it replays."""
    if not graph:
        return partial(_repeat, act, calls)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        _repeat(act, calls)
    replay: Callable[[], object] = captured.replay
    return replay


def _repeat(act: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        act()


def take_turns(clock: Clock, acts: Sequence[Callable[[], object]], calls: int, samples: int) -> list[list[float]]:
    """Return so many samples of each act, in microseconds a call. They take turns, in an order that changes."""
    found: list[list[float]] = [[] for _ in acts]
    order = random.Random(calls)  # the same on all ranks
    turn = list(range(len(acts)))
    for number in range(-_WARM, samples):
        order.shuffle(turn)
        for which in turn:
            taken = clock.microseconds(acts[which], calls)
            if number >= 0:
                found[which].append(taken)
    return found

"""The clocks of the system, also while the program has others in `time`, as tests that freeze the time do.

What such a program replaces are the functions of `time`, in `time` and in every module that has one of them.
"""

from functools import partial
from time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, clock_gettime_ns, sleep

__all__ = ["monotonic", "monotonic_ns", "sleep", "time", "time_ns"]

monotonic = partial(clock_gettime, CLOCK_MONOTONIC)
monotonic_ns = partial(clock_gettime_ns, CLOCK_MONOTONIC)
time = partial(clock_gettime, CLOCK_REALTIME)
time_ns = partial(clock_gettime_ns, CLOCK_REALTIME)

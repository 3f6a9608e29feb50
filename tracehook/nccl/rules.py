"""NCCL's rules for the path of a collective, by version: one place for each fact. :mod:`paths` asks them.

Read in NCCL's sources from 2.27.3 to 2.30.7. The table leaves out what tracehook's windows never are: memory of the
host, several devices of one process, and NVLink across cliques (``NCCL_MNNVL_CROSS_CLIQUE``).
"""

from __future__ import annotations

from typing import NamedTuple


class PathRule(NamedTuple):
    """What NCCL does from version `since` on, up to but without `until`, and the source files that say so."""

    since: int
    until: int | None
    source: str
    text: str

    def holds(self, version: int) -> bool:
        """Whether this version of NCCL does it."""
        return self.since <= version and (self.until is None or version < self.until)


_SCHEDULER, _KERNELS = "src/scheduler/symmetric_sched.cc", "src/sym_kernels.cc"
_ENQUEUE, _COPIES = "src/enqueue.cc", "src/ce_coll.cc"

# Each fact stands once. Numbers and lists that a fact needs stand below the table.
RULES = {
    "windows": PathRule(22703, None, "src/symmetric.cc", "there are windows, and symmetric kernels that use them"),
    "switches": PathRule(22703, None, "src/init.cc", "NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0: no symmetric memory"),
    "alone": PathRule(22703, 22803, _ENQUEUE, "a symmetric kernel takes only a collective that is alone in its group"),
    "nvlink": PathRule(22902, None, _KERNELS, "symmetric kernels need direct NVLink between all devices of a domain"),
    "gather_between": PathRule(
        22902, None, _KERNELS, "all_gather is symmetric between domains too, with both windows, GIN and multicast"
    ),
    "scatter_between": PathRule(
        22907, None, _KERNELS, "reduce_scatter is symmetric between domains too, with GIN and the send window"
    ),
    "one_window": PathRule(
        22902,
        None,
        f"{_KERNELS}, {_SCHEDULER}",
        "one window can be enough: that of all_gather's output, that of reduce_scatter's input, any for LL kernels",
    ),
    "no_window": PathRule(22902, None, _SCHEDULER, "NCCL_SYM_NOWIN_ENABLE=1: LL kernels also without windows"),
    "ll_if_plain_is": PathRule(
        22902, 22907, _SCHEDULER, "an LL kernel runs only where the plain one is LL, windows or not"
    ),
    "average": PathRule(23003, None, _SCHEDULER, "the average is reduced like a sum"),
    "copies": PathRule(22803, None, _COPIES, "CTA policy ZERO: copies without kernels, from CUDA 12.5 on"),
    "copies_into_window": PathRule(22902, None, _COPIES, "for copies the receive window is enough"),
    "large_all_gather": PathRule(
        22902, None, _ENQUEUE, "a large all_gather on Blackwell is copied, whatever the policy"
    ),
    "copies_between": PathRule(23007, None, _COPIES, "copies also between domains, with both windows and an RMA proxy"),
}
NEWEST = 23007  # the last version whose sources were read

KERNELS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})  # sym_kernels.cc
COPIES = frozenset({"all_gather", "all_to_all", "gather", "scatter"})  # ce_coll.cc
OPERATIONS = KERNELS | COPIES | {"broadcast", "reduce", "send", "recv"}
REDUCTIONS = frozenset({"sum", "avg", "product", "min", "max", "premul_sum", "band", "bor", "bxor"})
# Types that symmetric kernels add (sym_kernels.cc). torch hands a complex tensor over as pairs of real numbers.
ADDED = frozenset({"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex32"})
ENOUGH = {"all_gather": "receive", "reduce_scatter": "send"}  # sym_kernels.cc, since "one_window"

MOST_BYTES = 64 << 30  # on the bus, for every symmetric kernel: sym_kernels.cc
MOST_BYTES_LL = 2 << 30  # the same for LL kernels
# An inference from the constants of NCCL's cost model: from here on an LL kernel costs more than another one.
NEVER_LL = 4 << 20
LARGE_COUNT = 8 << 20  # elements of the type, not bytes: enqueue.cc, NCCL_SYM_CE_THRESHOLD
BLACKWELL = 100
POLICY_ZERO = 2  # a bit since 2.29.2, the whole value before: nccl.h

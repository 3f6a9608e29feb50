"""What a local registration (``ncclCommRegister``) can do for NCCL: one table, beside the rules of paths.

Pure and cheap: no torch, no call, no state. The first row that fits decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tracehook.log.tables import EFFECTS
from tracehook.log.text import in_bytes

CUDA_MALLOC, SHAREABLE, PRIVATE, PAUSABLE = "cudaMalloc", "shareable", "private", "pausable"
NONE, HOST, NETWORK, UNKNOWN = "none", "host", "network", "unknown"


class Facts(NamedTuple):
    """On what the effect depends."""

    memory: str
    """``cudaMalloc``, ``shareable``, ``private`` or ``pausable``: see `memory_kind` in docs/log-schema.md."""
    one_host: bool
    """Whether all ranks of the communicator share a host."""
    version: int
    """Of NCCL, as 22809; 0 if not known."""
    settings: Mapping[str, str]
    """NCCL's environment variables, with those of others or without."""

    def is_off(self, variable: str) -> bool:
        """Whether a setting that is on by default is off."""
        return self.settings.get(variable, "").strip() == "0"

    def is_on(self, variable: str) -> bool:
        """Whether a setting that is off by default is on."""
        return self.settings.get(variable, "").strip() == "1"


class EffectRule(NamedTuple):
    """One rule: what it says, where NCCL's sources say it, and what to do about it ("" if nothing)."""

    holds: Callable[[Facts], bool]
    effect: str
    source: str
    text: str
    remedy: str = ""


_P2P, _REGISTER, _NET = "src/transport/p2p.cc", "src/register/register.cc", "src/transport/net.cc"

# Read in NCCL's sources from 2.27.7 to 2.30.7. What was measured: docs/registration.md.
ROWS = (
    EffectRule(
        lambda facts: facts.is_off("NCCL_LOCAL_REGISTER"),
        NONE,
        _REGISTER,
        "NCCL_LOCAL_REGISTER=0: NCCL accepts registrations and uses none",
        "unset NCCL_LOCAL_REGISTER",
    ),
    EffectRule(
        lambda facts: facts.memory == PAUSABLE,
        NONE,
        "src/register/register.cc and cuMemUnmap of CUDA's driver",
        "a library can take the memory away (a sleep mode), and NCCL would keep it, or go on to use it",
        "allocate what gains by a registration outside of that library",
    ),
    EffectRule(
        lambda facts: not facts.one_host,
        NETWORK,
        _NET,
        "between hosts the network card reads and writes registered memory of every kind, if it can (GPUDirect RDMA)",
    ),
    EffectRule(
        lambda facts: facts.is_on("NCCL_P2P_DISABLE"),
        NONE,
        _P2P,
        "NCCL_P2P_DISABLE=1: no process maps memory of another one",
        "unset NCCL_P2P_DISABLE",
    ),
    EffectRule(
        lambda facts: 0 < facts.version < 22300,
        NONE,
        _P2P,
        "NCCL maps registered memory into other processes from 2.23 on",
        "use a newer NCCL",
    ),
    EffectRule(
        lambda facts: facts.memory == CUDA_MALLOC and facts.is_on("NCCL_LEGACY_CUDA_REGISTER"),
        HOST,
        _P2P,
        "NCCL_LEGACY_CUDA_REGISTER=1: other processes map memory of cudaMalloc by legacy handles, which may hang",
    ),
    EffectRule(
        lambda facts: facts.memory == CUDA_MALLOC,
        NONE,
        _P2P,
        "memory of cudaMalloc cannot be mapped by other processes",
        "set SYMM_REGISTER_MEMORY=vmm",
    ),
    EffectRule(
        lambda facts: facts.memory == PRIVATE,
        NONE,
        _P2P,
        "memory without a handle for others cannot be mapped by them, and NCCL loses a part of it at each call",
        "allocate it with an exportable handle",
    ),
    EffectRule(
        lambda facts: facts.is_off("NCCL_CUMEM_ENABLE"),
        NONE,
        _P2P,
        "NCCL_CUMEM_ENABLE=0: NCCL uses legacy handles, which this memory does not have",
        "unset NCCL_CUMEM_ENABLE",
    ),
    EffectRule(
        lambda facts: facts.memory == SHAREABLE,
        HOST,
        _P2P,
        "other processes of the host map the memory, and write into it directly",
    ),
)
_NOT_KNOWN = EffectRule(lambda _: True, UNKNOWN, "", "the kind of memory is not known")


def row_of(facts: Facts) -> EffectRule:
    """Return the rule that decides what a registration can do."""
    return next((row for row in ROWS if row.holds(facts)), _NOT_KNOWN)


def numbers(memories: tuple[str, ...], one_host: bool, version: int, settings: Mapping[str, str]) -> list[int]:
    """Return the number of the effect (cpp/events/effects.def) for each kind of memory."""
    return [EFFECTS.index(row_of(Facts(memory, one_host, version, settings)).effect) for memory in memories]


class Threshold(NamedTuple):
    """From how many bytes on a call is faster on registered memory; None: never."""

    eager: int | None
    captured: int | None

    def in_words(self) -> str:
        """Return both, as ``from 16 MiB (captured: 8 MiB)``."""
        eager, captured = ("never" if size is None else in_bytes(size, exact=True) for size in self)
        return f"{eager if self.eager is None else f'from {eager}'} (captured: {captured})"


_MIB = 1 << 20

# In the order of the native side (cpp/nccl/paying.h). Bytes of the whole output for all_gather and all_to_all, of the
# buffer for a send or a receive. What loses or gains nothing has no row: broadcast, all_reduce, reduce_scatter.
PAYING = {
    "all_gather": Threshold(16 * _MIB, 8 * _MIB),
    "all_to_all": Threshold(16 * _MIB, 4 * _MIB),
    "send": Threshold(32 * _MIB, 4 * _MIB),
}

"""Which path NCCL takes for a collective: a symmetric kernel, the copy engine, or the plain way.

Pure and cheap: no torch, no call, no state. The facts stand in :mod:`rules`. A domain that ``NCCL_LSA_TEAM_SIZE``
splits (from 2.29.7 on) is `several` for whoever asks. NCCL also reads settings from its configuration files: `path_of`
sees only those that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tracehook.nccl.rules import (
    ADDED,
    BLACKWELL,
    COPIES,
    ENOUGH,
    KERNELS,
    LARGE_COUNT,
    MOST_BYTES,
    MOST_BYTES_LL,
    NEVER_LL,
    NEWEST,
    OPERATIONS,
    POLICY_ZERO,
    REDUCTIONS,
    RULES,
)
from tracehook.versions import nccl_name

SYMMETRIC, COPY_ENGINE, PLAIN, DEPENDS = "symmetric", "copy_engine", "plain", "depends"
NVLINK, ONE_HOST, PEERS, SEVERAL = "nvlink", "one_host", "peers", "several"
DOMAINS = frozenset({NVLINK, ONE_HOST, PEERS, SEVERAL})


class Path(NamedTuple):
    """Answer of :func:`path_of`: one of the four kinds, the first reason as a constant code, and a sentence.

    ``depends``: the path hangs on what only NCCL knows, and the sentence says on what.
    """

    kind: str
    reason: str
    text: str


_CALLED = {  # what torch calls them
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class _Call(NamedTuple):
    operation: str
    sends: bool
    receives: bool
    nbytes: int
    ranks: int
    version: int
    domain: str | None
    grouped: bool
    settings: Mapping[str, str]

    def does(self, rule: str) -> bool:
        return RULES[rule].holds(self.version)

    @property
    def bus_bytes(self) -> int:
        return self.nbytes * (1 if self.operation == "all_reduce" else self.ranks)

    @property
    def missing(self) -> str:
        """The buffers that lie in no window, as sentences call them."""
        names = [name for name, there in (("send", self.sends), ("receive", self.receives)) if not there]
        return f"the {' and the '.join(names)} buffer {'lies' if len(names) == 1 else 'lie'} in no window"


def path_of(
    operation: str,
    dtype: str = "float32",
    reduction: str = "sum",
    *,
    sends_in_window: bool,
    receives_in_window: bool,
    nbytes: int,
    ranks: int,
    version: int,
    domain: str | None = None,
    grouped: bool = False,
    policy: int = 0,
    capability: int | None = None,
    itemsize: int = 1,
    settings: Mapping[str, str] = _NO_SETTINGS,
) -> Path:
    """Return the path that NCCL takes for one collective call, and the first reason.

    Args:
        operation: one of `OPERATIONS`, or torch's name of it.
        dtype: as torch writes it, with or without ``torch.``.
        reduction: one of `REDUCTIONS`; ignored where nothing is reduced.
        sends_in_window: whether all of the send buffer lies in a window of the communicator.
        receives_in_window: the same of the receive buffer.
        nbytes: bytes of NCCL's count: of the whole buffer for all_reduce, of the smaller buffer for all_gather and
            reduce_scatter, of one peer's part for all_to_all.
        ranks: ranks of the communicator.
        version: of NCCL, as 22809.
        domain: what joins the ranks. ``nvlink``: one domain, direct NVLink between all devices; ``one_host``: the
            same host, NVLink is taken for granted; ``peers``: one domain, but not all by NVLink; ``several``: several
            domains; None: not known.
        grouped: whether other calls are in the same NCCL group; from 2.28.3 on only those alike count.
        policy: CTA policy of the communicator's configuration; the setting ``NCCL_CTA_POLICY`` overrides it.
        capability: the lowest compute capability of the devices, as 90; None: not known.
        itemsize: bytes of one element, for the rule of large all_gathers, which counts elements.
        settings: NCCL's environment variables, with those of others or without.

    Raises:
        ValueError: an operation, a reduction or a domain that the table does not know.

    """
    operation, reduction = check_names(operation, reduction)
    _check("domain", domain or NVLINK, DOMAINS)
    call = _Call(operation, sends_in_window, receives_in_window, nbytes, ranks, version, domain, grouped, settings)
    return (
        _nothing_to_choose(call)
        or _copied(call, _policy(call, policy), capability, itemsize)
        or _not_for_kernels(call, dtype.removeprefix("torch."), reduction)
        or _domain_forbids(call)
        or _windows_decide(call)
    )


def check_names(operation: str, reduction: str) -> tuple[str, str]:
    """Return both names as the table has them; ValueError for one that it does not have."""
    operation, reduction = _CALLED.get(str(operation), operation), str(reduction).rpartition(".")[2].lower()
    _check("operation", operation, OPERATIONS)
    _check("reduction", reduction, REDUCTIONS)
    return operation, reduction


def _check(what: str, given: str, known: frozenset[str]) -> None:
    if not isinstance(given, str) or given not in known:
        raise ValueError(f"tracehook: the {what} is {given!r}: give one of {', '.join(sorted(known))}")


def _nothing_to_choose(call: _Call) -> Path | None:
    if not call.does("windows"):
        return Path(PLAIN, "version", f"NCCL {nccl_name(call.version)} has no windows: they come with 2.27.3")
    if call.nbytes == 0:
        return Path(PLAIN, "empty", "NCCL does nothing with an empty buffer")
    if call.ranks == 1:
        return Path(PLAIN, "one_rank", "NCCL copies the buffer: the communicator has one rank")
    for name in ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"):
        if call.does("switches") and _number(call.settings, name, 1) == 0:
            return Path(PLAIN, "setting", f"{name}=0: then NCCL has no symmetric memory")
    return None


def _copied(call: _Call, policy: int, capability: int | None, itemsize: int) -> Path | None:
    """Answer for the copy engine, which NCCL asks before all kernels; None: it does not take the call."""
    if call.operation not in COPIES or not call.does("copies"):
        return None
    is_zero = bool(policy & POLICY_ZERO) if call.does("copies_into_window") else policy == POLICY_ZERO
    in_windows = call.receives and (call.sends or call.does("copies_into_window"))
    if is_zero and in_windows and call.domain in (NVLINK, ONE_HOST, PEERS):
        return Path(
            COPY_ENGINE, "policy", "the CTA policy is ZERO, and the windows are there: copies, without a kernel"
        )
    between = call.sends and call.does("copies_between") and call.operation in ("all_gather", "all_to_all")
    if is_zero and in_windows and (call.domain is None or (call.domain == SEVERAL and between)):
        return Path(DEPENDS, "domain", "the CTA policy is ZERO: copies, if one NVLink domain or an RMA proxy joins all")
    count = _number(call.settings, "NCCL_SYM_CE_THRESHOLD", LARGE_COUNT)
    is_large = call.operation == "all_gather" and call.nbytes // itemsize > count and call.does("large_all_gather")
    if not (is_large and in_windows) or call.domain in (PEERS, SEVERAL) or (capability or BLACKWELL) < BLACKWELL:
        return None
    if capability is None or call.domain is None:
        return Path(DEPENDS, "large", f"on Blackwell, in one NVLink domain, copies from {count + 1} elements on")
    return Path(COPY_ENGINE, "large", f"on Blackwell NCCL copies an all_gather of more than {count} elements")


def _not_for_kernels(call: _Call, dtype: str, reduction: str) -> Path | None:
    if call.operation not in KERNELS:
        more = "; CTA policy ZERO lets the copy engine take it" if call.operation in COPIES else ""
        return Path(PLAIN, "operation", f"there is no symmetric kernel for {call.operation}{more}")
    if call.operation != "all_gather":
        if dtype not in ADDED:
            return Path(PLAIN, "dtype", f"symmetric kernels do not reduce {dtype}: only floats of 32 bits and fewer")
        if reduction != "sum" and not (reduction == "avg" and call.does("average")):
            more = ", and the average since 2.30.3" if reduction == "avg" else ""
            return Path(PLAIN, "reduction", f"symmetric kernels do not reduce by {reduction}: only by sum{more}")
    if call.bus_bytes >= MOST_BYTES:
        return Path(PLAIN, "size", f"{call.bus_bytes} bytes are too many for symmetric kernels: less than 64 GiB fit")
    if call.grouped and call.does("alone"):
        return Path(PLAIN, "grouped", "before 2.28.3 a symmetric kernel takes only a collective alone in its group")
    name = call.settings.get("NCCL_SYM_KERNEL", "^")
    if name == "^":
        return None
    if name.partition("_")[0].lower() != call.operation.replace("_", ""):
        return Path(PLAIN, "setting", f"NCCL_SYM_KERNEL={name} leaves no symmetric kernel for {call.operation}")
    return Path(DEPENDS, "setting", f"NCCL_SYM_KERNEL={name}: symmetric where that kernel can run")


def _domain_forbids(call: _Call) -> Path | None:
    if call.domain == PEERS and call.does("nvlink"):
        return Path(PLAIN, "links", "since 2.29.2 symmetric kernels need direct NVLink between all devices")
    if call.domain != SEVERAL:
        return None
    rule = {"all_gather": "gather_between", "reduce_scatter": "scatter_between"}.get(call.operation)
    if rule is None or not call.does(rule):
        text = f"NCCL {nccl_name(call.version)} has no symmetric kernel for {call.operation} between NVLink domains"
        return Path(PLAIN, "domain", text)
    if _number(call.settings, "NCCL_SYM_GIN_KERNELS_ENABLE", 1) == 0:
        return Path(PLAIN, "setting", "NCCL_SYM_GIN_KERNELS_ENABLE=0: no symmetric kernel between NVLink domains")
    if not call.sends or (call.operation == "all_gather" and not call.receives):
        return Path(PLAIN, "windows", f"{call.missing}, which {call.operation} between NVLink domains needs")
    if call.operation == "all_gather":
        return Path(DEPENDS, "domain", "between NVLink domains: symmetric, if all devices of a domain have multicast")
    return Path(SYMMETRIC, "in_windows", "what is sent lies in a window: a symmetric kernel between NVLink domains")


def _windows_decide(call: _Call) -> Path:
    """Answer for ranks of one domain, or of one that nobody knows."""
    both, enough = call.sends and call.receives, ENOUGH.get(call.operation)
    has_enough = both or {"send": call.sends, "receive": call.receives}.get(enough or "", False)
    some = call.sends or call.receives
    if both or (has_enough and call.does("one_window")):
        never_ll = call.grouped or call.nbytes >= NEVER_LL or call.bus_bytes >= MOST_BYTES_LL
        if never_ll or (both and not call.does("ll_if_plain_is")):
            return _symmetric(call, "both buffers lie in windows" if both else f"the {enough} buffer lies in a window")
    elif not some and not (call.does("no_window") and _number(call.settings, "NCCL_SYM_NOWIN_ENABLE", 0)):
        return Path(PLAIN, "windows", call.missing)
    elif not call.does("one_window"):
        return Path(PLAIN, "windows", f"{call.missing}, and before 2.29.2 a symmetric kernel needs both windows")
    elif call.grouped or call.bus_bytes >= MOST_BYTES_LL:
        return Path(PLAIN, "windows", f"{call.missing}, and this call is nothing for an LL kernel, which needs fewer")
    seen = "both buffers lie in windows" if both else call.missing
    text = f"{seen}: for short messages NCCL takes a symmetric LL kernel where its plain kernel would be LL too"
    return Path(DEPENDS, "cost_model", text)


def _symmetric(call: _Call, why: str) -> Path:
    if call.domain is None:
        return Path(DEPENDS, "domain", f"{why}: symmetric, if one NVLink domain joins all ranks")
    granted = ", with NVLink between all devices taken for granted" if call.domain == ONE_HOST else ""
    unread = f" (NCCL {nccl_name(NEWEST)} does so)" if call.version > NEWEST else ""
    return Path(SYMMETRIC, "in_windows", why + (granted if call.does("nvlink") else "") + unread)


def _policy(call: _Call, policy: int) -> int:
    text = call.settings.get("NCCL_CTA_POLICY", "")
    if text[:1].isdigit():
        return int(text[0])
    return POLICY_ZERO if "ZERO" in text.upper().split("|") else policy if not text else 0


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    """Return a setting as NCCL reads it; what is no number counts as its default."""
    try:
        return int(settings.get(name, ""), 0)
    except ValueError:
        return default

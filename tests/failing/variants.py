"""Which call fails in a turn, and how a turn has to end then."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

ALWAYS = 0  # of an ordinal: from the first call on
LONG = 30.0  # seconds that an agreement waits for ranks that come, on a busy machine
SHORT = 3.0  # and where a rank does not come
DEADLINE = 4.0  # seconds after which the emulated NCCL ends a wait for a rank that does not come
BEYOND = 6.0  # seconds that a rank may wait longer, on a busy machine

# torch makes these calls, and tracehook passes them on. What becomes of the ranks if one fails is torch's matter.
OF_TORCH = {
    *("ncclAllGather", "ncclAllReduce", "ncclRecv", "ncclSend", "ncclGroupEnd", "ncclGroupStart", "ncclGetUniqueId"),
    *("ncclCommDestroy", "ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommInitRankConfig", "ncclCommSplit"),
}
# torch's allocator makes these through tracehook, and raises on the rank where one fails, as it does without tracehook.
# While it captures, a free that fails leaves it unusable: so only the last one fails.
FREES = {"cudaFree", "cuMemUnmap"}
ALONE = {*FREES, "cudaMalloc"}
# Of those that fail, memory is left: for the life of the process, or until the communicator has ended.
LEAVE_MEMORY = {"cudaFree", "cuMemAddressFree", "cuMemRelease", "cuMemUnmap", "ncclCommWindowDeregister", "ncclMemFree"}
# A call that is refused raises torch's error, with tracehook's words.
OF_TRACEHOOK = (
    r"Registration(?:Error|Failed|Mismatch|Timeout): |PeerError: |DistBackendError: [^\0]*tracehook: communicator "
)
LINE = "line"  # of tracehook, at which a signal's handler raises: no call, so what becomes of the others is open
REMOVES = "rounds.delete_key"  # keys that nobody reads any more
# It puts a signal on a stream. Where it fails the peer's stream waits, as for a kernel that was not launched.
LAUNCHES = {"cuStreamBatchMemOp_v2"}


class Variant(TypedDict):
    """One call that fails on one rank."""

    call: str  # of NCCL, of CUDA, or of the store: see failing_store.py
    ordinal: int
    rank: int
    result: int


def loses_the_store(variant: Variant) -> bool:
    """Whether a rank can no longer use the store after its post: it cannot know whether the others go on."""
    call = variant["call"]
    return call.startswith("rounds.") and call not in {"rounds.set", REMOVES} and variant["ordinal"] == ALWAYS


def stops_nobody(variant: Variant) -> bool:
    """Whether the ranks go on as if nothing had failed: a store fails once, removes nothing, or fails the watchdog."""
    call = variant["call"]
    return "." in call and (variant["ordinal"] != ALWAYS or call == REMOVES or call.startswith("watch."))


def ends_in_nccl(variant: Variant) -> bool:
    """Whether some rank waits in NCCL for one that does not come: then the communicator is of no more use."""
    return variant["call"] in {"ncclCommWindowRegister", LINE} or loses_the_store(variant)


def patience_of(variant: Variant) -> float:
    """Return the seconds that an agreement waits."""
    is_constant = variant["ordinal"] == ALWAYS and not stops_nobody(variant)
    never_comes = is_constant or variant["call"] in ALONE or ends_in_nccl(variant)
    return SHORT if never_comes else LONG


def of(counts: Sequence[Mapping[str, int]], is_whole: bool, has_all: bool) -> Iterator[Variant]:
    """Return the variants of a program whose ranks make that many calls of each name.

    `is_whole`: each call of a name fails once, not only the first and the last. `has_all`: also calls of NCCL and the
    store, which another kind of memory does not change.
    """
    for call in sorted(set().union(*counts) - OF_TORCH - LAUNCHES - {LINE} - (set() if is_whole else ALONE - FREES)):
        if not has_all and not call.startswith("cu"):
            continue
        made = [found.get(call, 0) for found in counts]
        last = max(made)
        ordinals = range(1, last + 1) if is_whole else sorted({1, last})
        if call in FREES or (call == "ncclCommWindowRegister" and not is_whole):
            ordinals = range(last, last + 1)
        elif call.startswith("watch."):  # it comes once a second
            ordinals = range(1, 2)
        for number, ordinal in enumerate(ordinals):
            able = [rank for rank, each in enumerate(made) if each >= ordinal]
            result = 3 if call.startswith("nccl") else (1, 2, 999)[number % 3]
            yield Variant(call=call, ordinal=ordinal, rank=able[(number + len(call)) % len(able)], result=result)
        if "." in call:
            able = [rank for rank, each in enumerate(made) if each]
            for rank in able if is_whole else able[:1]:
                yield Variant(call=call, ordinal=ALWAYS, rank=rank, result=0)


def of_lines(counts: Sequence[Mapping[str, int]], is_whole: bool) -> list[Variant]:
    """Return the variants in which a signal comes: at each line that the ranks reach, or at some of them."""
    ordinals = range(1, min(each[LINE] for each in counts), 1 if is_whole else 37)
    return [Variant(call=LINE, ordinal=each, rank=each % len(counts), result=0) for each in ordinals]


def problems(variant: Variant, told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the end of a turn; `told`: by rank."""
    call, rank = variant["call"], variant["rank"]
    found = []
    raised = [str(each.get("raised", "")) for each in told]
    may_wait = call in {*ALONE, LINE} or loses_the_store(variant)
    for own, each in enumerate(told):
        if each["wrong"] and not each["released"]:
            found.append(f"rank {own} got wrong sums: {each['wrong']}")
        if each["released"] and not may_wait:
            found.append(f"rank {own} was left waiting")
        if not each["released"] and each["seconds"] > patience_of(variant) + DEADLINE + BEYOND:
            found.append(f"rank {own} took {each['seconds']} s")
        if each.get("stays"):
            found.append(f"rank {own} goes on with {each['stays']}")
        left = set(each["left"]) - ({"bytes", "pools"} if call in LEAVE_MEMORY else set())
        if left:
            found.append(f"on rank {own} something is left: {each['left']}")
        if "other group" in each:
            found.append(f"on rank {own} another group does not work: {each['other group']}")
        if "free" in each and not any(raised):
            found.append(f"on rank {own} nothing can be given back: {each['free']}")
        if "end" in each:
            found.append(f"on rank {own} the groups do not end: {each['end']}")
    if call == LINE:
        at = told[rank].get("interrupted", "")
        if bool(at) != raised[rank].startswith("Interrupted: "):
            found.append(f"rank {rank} does not get what the handler raised at {at}")
        for own, each in enumerate(told):
            if own != rank and raised[own] and not each["released"] and not re.match(OF_TRACEHOOK, raised[own]):
                found.append(f"rank {own} raised what tracehook did not say")
        return [f"{problem} {raised}" for problem in found]
    if any(raised) and stops_nobody(variant):
        found.append("a failure of the store that nobody waits for stopped the ranks")
    if loses_the_store(variant):
        if any(raised) and not re.search(f"a failure of {call.partition('.')[2]} that was planned", raised[rank]):
            found.append(f"rank {rank} does not name the cause")
        return [f"{problem} {raised}" for problem in found]
    if any(raised) and not all(raised):
        found.append("only some ranks raised")
    if all(raised) and call not in ALONE:
        ours = [bool(re.match(OF_TRACEHOOK, text)) for text in raised]
        has_no_memory = call == "ncclMemAlloc" and raised[rank].startswith("OutOfMemoryError: ")
        if not all(is_ours or (own == rank and has_no_memory) for own, is_ours in enumerate(ours)):
            found.append("some rank raised what tracehook did not say")
        if not all(
            f"rank {rank} " in text or f"rank {rank}:" in text for own, text in enumerate(raised) if own != rank
        ):
            found.append(f"some rank does not name rank {rank}")
        cause = (
            f"a failure of {call.partition('.')[2]} that was planned" if "." in call else r"NCCL error 3|OutOfMemory"
        )
        of_peers = raised[rank].startswith("PeerError: ")
        for own in range(len(raised)) if of_peers else (rank,):
            if not re.search(call.removesuffix("_v2") if of_peers else cause, raised[own]):
                found.append(f"rank {own} does not name the cause")
    return [f"{problem} {raised}" for problem in found]

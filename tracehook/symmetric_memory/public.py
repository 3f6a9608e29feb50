"""Symmetric memory as programs see it: ``tracehook.symmetric``, ``sync``, ``trim`` and the questions about a tensor.

Imports torch, and makes the memory of this process, only at the first use.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tracehook.hook import groups as group_names
from tracehook.symmetric_memory import state
from tracehook.symmetric_memory.answers import Asked, Explanation, path_without_windows, span
from tracehook.symmetric_memory.handle import handle
from tracehook.symmetric_memory.scope import NO_SCOPE, NoScope, Scope, left_to_python
from tracehook.symmetric_memory.state import Switch, existing, holders, scopes, scopes_of_others

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.distributed import ProcessGroup

    Groups: TypeAlias = ProcessGroup | Sequence[ProcessGroup] | None


Hints: TypeAlias = tuple[str | None, int | None, str | None]  # operation, bytes, type

_MOST_SCOPES = 1024
_followed: set[int] = set()  # ids of the groups whose end is watched


def symmetric(
    group: Groups = None,
    *,
    communicator: Any = None,
    disabled: bool = False,
    graph: bool = False,
    operation: str | None = None,
    nbytes: int | None = None,
    dtype: str | None = None,
) -> Scope | NoScope:
    """Return a scope: CUDA tensors that this thread makes inside are in symmetric memory of `group`.

    At its end, the segments that were touched inside and that the group has no window on yet are registered, in the
    order of their first use. Before that the ranks compare what they are about to register, and after it whether all
    succeeded; so **all ranks of the group have to leave the scope at the same point of the program**. When nothing is
    new, nothing is sent and nothing is called. An exception inside registers nothing.

    While the current stream is captured into a CUDA graph nothing can be registered: memory that has windows already
    serves, what lacks them waits for :func:`sync`. Memory of a capture belongs to the captured graphs until
    :func:`release_graphs`.

    Put a scope around allocations, not around a step. While one is open on any thread, PyTorch before 2.13 does not
    give back its cached memory of the device when there is none left. ``empty_cache()`` frees nothing then, and memory
    with ``record_stream`` is not used again until the scope ends. Inside a scope the thread's own ``use_mem_pool``
    wins, and under ``use_mem_pool`` the scope does.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group, a communicator that torch did not make: its ``ncclComm_t`` (int or
            ``ctypes.c_void_p``), an object with that as ``comm``, or a group coordinator of SGLang or vLLM. Its ranks
            meet at the default group's store, or at that of :func:`tracehook.use_store`.
        disabled: True: return a shared object that does nothing.
        graph: use the memory of captured graphs also outside of a capture: for the warm-up before it, on the same
            stream.
        operation: for policies, a hint: what the tensors are for, such as ``"all_reduce"``.
        nbytes: for policies, a hint: bytes of the larger buffer of that collective.
        dtype: for policies, a hint: torch's name of the elements' type, such as ``"bfloat16"``.

    Raises:
        TypeError: `communicator` is none.
        ValueError: `communicator` has no handle yet, or a group was given too.
        RuntimeError: tracehook does not know the communicator, or its ranks have no store.

    At its end the scope raises

    * RegistrationMismatch: the ranks want different windows. Nothing was registered anywhere.
    * RegistrationTimeout: some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. Nothing was registered.
    * RegistrationFailed: NCCL refused a window on some rank. No rank uses it.
    * PoolLimitError: ``SYMM_REGISTER_POOL_LIMIT`` is reached.
    * RegistrationError: the communicator ended meanwhile. It is the base of the first three.

    With ``SYMM_REGISTER_ON_ERROR=warn`` the first three are said on stderr instead, and all ranks go on without
    windows. Does nothing if tracehook is not enabled.

    """
    if disabled or Switch.host is None:
        return NO_SCOPE
    if communicator is not None:
        return _scope_of(group, communicator, graph, (operation, nbytes, dtype))
    if group is None and Switch.members is not None:
        group = Switch.members.WORLD
    scope = scopes.get((id(group), graph, (operation, nbytes, dtype)))
    if scope is not None and scope._refs[0]() is group:
        return scope
    return _scope(group, graph, (operation, nbytes, dtype))


# What torch.compiler.disable sets, which would load the compiler: in compiled code the graph ends before a scope.
symmetric.__dict__.update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="a scope of tracehook is left to Python; make its tensors in a function of their own, or "
    "call tracehook.empty or tracehook.all_reduce, which are operators (docs/symmetric.md, torch.compile)",
)


@left_to_python
def _scope(group: Groups, graph: bool, hints: Hints) -> Scope | NoScope:
    memory = state.memory()
    if memory is None:
        return NO_SCOPE
    groups = group_names.resolve(group)
    if not groups:
        return _outside(())
    key = (*map(id, groups), graph, hints)
    scope = scopes.get(key)
    if scope is not None and scope.belongs_to(groups):
        return scope
    windows = [memory.windows(member) for member in groups]
    made = memory.scope(windows, groups, graph, hints) or _outside(groups)
    if len(scopes) >= _MOST_SCOPES:  # a size hint that is another one each time
        scopes.clear()
    scopes[key] = made
    for member in groups:
        if id(member) not in _followed:
            _followed.add(id(member))
            weakref.finalize(member, _group_is_gone, id(member))
    return made


@left_to_python
def _scope_of(group: Groups, communicator: Any, graph: bool, hints: Hints) -> Scope | NoScope:
    memory = state.memory()
    if memory is None:
        return NO_SCOPE
    key = (handle(communicator), graph, hints)
    known = scopes_of_others.get(key)
    if known is not None and group is None and not known[1].communicator().dead:  # addresses are used again
        return known[0]
    (windows,) = memory.chosen(group, communicator)
    made = memory.scope([windows], (), graph, hints) or _outside(())
    for old in [old for old, (_, found) in scopes_of_others.items() if found.communicator().dead]:
        del scopes_of_others[old]
    if len(scopes_of_others) >= _MOST_SCOPES:
        scopes_of_others.clear()
    scopes_of_others[key] = made, windows
    return made


def _group_is_gone(number: int) -> None:
    """Let go of what belongs to a group, or its connections and threads live for ever."""
    _followed.discard(number)
    holders.pop(number, None)
    for key in [key for key in list(scopes) if number in key[:-2]]:
        scopes.pop(key, None)


def _outside(groups: Sequence[ProcessGroup]) -> Scope:
    """Ordinary memory: nothing that is made inside belongs to an outer scope, as on the ranks that have the group."""
    from tracehook import _core

    leave = _core.leave_outside
    return Scope(_core.enter_outside, leave, leave, lambda touched, error: None, False, groups)  # noqa: ARG005


def is_symmetric(tensor: Tensor, group: ProcessGroup | None = None, *, communicator: Any = None) -> bool:
    """Return whether all of `tensor` lies in one window of `group`, so that NCCL may use its symmetric kernels.

    `communicator`, instead of a group: see :func:`symmetric`.

    Local and cheap; it says nothing about the other ranks' tensors, which the placement check compares at first use.
    """
    if communicator is not None:
        memory = existing() if tensor.is_cuda else None
        (windows,) = memory.chosen(group, communicator) if memory is not None else (None,)
        return windows is not None and bool(windows.communicator().holds(tensor.data_ptr(), span(tensor)))
    if group is None and Switch.members is not None:
        group = Switch.members.WORLD
    holder = holders.get(id(group))
    if holder is None or holder[0]() is not group:
        return _is_symmetric(tensor, group)
    holds: bool = holder[1](tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else span(tensor))
    return holds


def _is_symmetric(tensor: Tensor, group: ProcessGroup | None) -> bool:
    found = Switch.memory.holder(group) if Switch.memory is not None and tensor.is_cuda else None
    if found is None:
        return False
    if group is not None:
        holders[id(group)] = (weakref.ref(group), found)
    return bool(found(tensor.data_ptr(), span(tensor)))


def explain(
    tensor: Tensor,
    group: ProcessGroup | None = None,
    *,
    communicator: Any = None,
    operation: str | None = None,
    dtype: dtype | None = None,
    reduction: str = "sum",
    other: Tensor | None = None,
) -> Explanation:
    """Return why `tensor` is, or is not, symmetric in `group`: a reason code and a sentence.

    Codes: ``symmetric``, ``not_cuda``, ``not_enabled``, ``not_in_pool``, ``policy``, ``expandable_segment``,
    ``no_communicator``, ``not_registered``, ``deferred``, ``outside``, ``other_device``, ``mismatch``, ``timeout``,
    ``failed``, ``no_symmetric_support``, ``no_nccl``, ``nccl_too_old``, ``placement``, ``unavailable``.

    With `operation` it also says which path NCCL takes for that collective, and why: see :class:`Explanation`, and
    "Which path NCCL takes" in docs/symmetric.md. Local and without a call to NCCL: it takes for granted that the other
    ranks' buffers lie as this rank's do.

    Args:
        tensor: the tensor. For an operation, what it fills: its output.
        group: a process group with an NCCL backend; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.
        operation: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``gather``, ``scatter``,
            ``broadcast``, ``reduce``, or torch's name of one.
        dtype: the type that is reduced; the tensor's own if None.
        reduction: ``sum``, ``avg``, ``min``, ``max``, ``product``, ``premul_sum``, ``band``, ``bor`` or ``bxor``.
        other: what the operation reads: its input. None: it works in place, so `tensor` is the larger buffer.

    Raises:
        ValueError: an operation or a reduction that is none of these.

    """
    asked = Asked(operation, dtype, reduction, other) if operation is not None else None
    memory = Switch.memory
    unavailable = Switch.unavailable if Switch.host is not None else None
    if tensor.device.type != "cuda":
        answer = Explanation(False, "not_cuda", f"the tensor is on {tensor.device}; windows are made on CUDA memory")
    elif unavailable is not None:
        answer = Explanation(False, *unavailable)
    elif memory is None:
        answer = Explanation(
            False,
            "not_enabled",
            "no scope was entered in this process yet, or tracehook is not enabled: set SYMM_REGISTER_HOOK=1 or call "
            "tracehook.enable(), and make the tensor inside `with tracehook.symmetric(group)`",
        )
    else:
        return memory.explain(tensor, span(tensor), group, communicator, asked)
    return answer if asked is None else answer.with_path(path_without_windows(asked, answer))


def sync(group: Groups = None, *, communicator: Any = None) -> int:
    """Register what waits for it (see :func:`symmetric`, captures), and check that the ranks still agree.

    `communicator`, instead of a group: see :func:`symmetric`.

    Collective: all ranks of the group call it at the same point, outside of a capture. Besides the waiting windows the
    ranks compare how many collectives they made in windows, and where: a difference means that results since the
    last check may be wrong, and is a :class:`RegistrationMismatch`.

    Returns:
        how many windows were registered, on all groups.

    Raises:
        RuntimeError: the current stream is captured. Nothing was sent.
        RegistrationMismatch: the ranks differ, or another rank is at another act. Nothing was registered anywhere.
        RegistrationTimeout: some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. Nothing was registered.
        RegistrationFailed: NCCL refused a window on some rank. No rank uses it.

    """
    memory = existing()
    return memory.sync(memory.chosen(group, communicator)) if memory is not None else 0


def trim(group: Groups = None, *, communicator: Any = None) -> int:
    """Give back the memory of the group's pools that no tensor uses, on all ranks in the same order.

    `communicator`, instead of a group: see :func:`symmetric`.

    Collective: all ranks of the group call it at the same point, outside of a capture and of all scopes of the calling
    thread. A segment leaves only if it is unused on every rank, and its memory only when its last group has let go of
    it. What captured graphs used stays until :func:`release_graphs`, and everything while a device communicator of the
    group lives (``ncclDevCommCreate``). Waits for the device, and empties torch's own cache too
    (``torch.cuda.empty_cache()``). With the ``shared`` policy the memory belongs to all groups of the device: ranks
    that trim a subgroup alone have other memory afterwards than the rest, and no longer agree with it.

    While another thread is in a scope or in ``use_mem_pool`` on the device, or captures, PyTorch cannot give up memory
    of pools: then this rank offers nothing, so that no rank gives anything back, and a later call does it.

    Returns:
        bytes that this rank gave back to the device.

    Raises:
        RuntimeError: the current stream is captured, or this thread is in a scope. Nothing was sent.
        RegistrationMismatch: another rank is at another act. Nothing was given back.
        RegistrationTimeout: some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. Nothing was given back.

    """
    memory = existing()
    return memory.trim(memory.chosen(group, communicator)) if memory is not None else 0


def release_graphs() -> None:
    """Say that every CUDA graph which was captured so far is gone, so that :func:`trim` may give back its memory."""
    if Switch.memory is not None:
        Switch.memory.release_graphs()

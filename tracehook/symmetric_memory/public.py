"""Symmetric memory as programs see it: ``tracehook.symmetric``, ``sync``, ``trim`` and the questions about a tensor.

Imports torch, and makes the memory of this process, only at the first use.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tracehook.hook import groups as group_names
from tracehook.hook import registration
from tracehook.hook.service import service
from tracehook.nccl.paths import check_names
from tracehook.symmetric_memory import state
from tracehook.symmetric_memory.answers import Asked, Explanation, is_bytes, local, path_without_windows, place, span
from tracehook.symmetric_memory.handle import handle
from tracehook.symmetric_memory.scope import NO_SCOPE, NoScope, left_to_python
from tracehook.symmetric_memory.state import Switch, existing, holders, ordinary_types, scopes, scopes_of_others

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.distributed import ProcessGroup

    from tracehook.symmetric_memory.pool_scope import Scope

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
    """Return a scope: CUDA tensors that this thread makes inside it are in symmetric memory of `group`.

    At its end the scope registers the segments that this thread used inside it and on which the group has no window
    yet, in the order of their first use. Before that the ranks compare these registrations, and afterwards whether all
    succeeded. So **all ranks of the group have to leave the scope at the same point of the program**. If nothing is
    new, the scope sends nothing and calls nothing. If an exception leaves it, it registers nothing.

    During a capture of the current stream into a CUDA graph the scope registers nothing. It gives out memory that has
    windows already; other memory waits for :func:`sync`. Memory of a capture belongs to the captured graphs until
    :func:`release_graphs`.

    Put a scope around allocations, not around a step. While one is open on any thread, PyTorch before 2.13 does not
    free its cached memory of the device when there is none left. ``empty_cache()`` frees nothing then, and memory with
    ``record_stream`` serves no new tensor until the scope ends. The innermost of the thread's scopes and
    ``use_mem_pool``s wins.

    If tracehook is not enabled, the scope does nothing. See docs/symmetric.md.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group, a communicator that torch did not make: its ``ncclComm_t`` (int or
            ``ctypes.c_void_p``), an object with that as ``comm`` or ``ptr``, or a group coordinator of SGLang or vLLM.
            Its ranks meet at the default group's store, or at that of :func:`tracehook.use_store`.
        disabled: True: return a shared object that does nothing.
        graph: use the memory of captured graphs also outside a capture: for the warm-up before it, on the same
            stream. A scope in a capture that names an `operation` sets it by itself.
        operation: a hint for policies: the collective that will use the tensors, such as ``"all_reduce"``.
        nbytes: a hint for policies: bytes of the larger buffer of that collective.
        dtype: a hint for policies: torch's name of the elements' type, such as ``"bfloat16"``.

    Raises:
        TypeError: `group` or `communicator` is none, or a hint or `graph` has another type.
        ValueError: `communicator` has no handle yet, or the program gave a group too; or `operation` is none.
        RuntimeError: tracehook does not know the communicator, its ranks have no store, or the group has no NCCL.

    At its end the scope raises

    * RegistrationMismatch: the ranks want different windows. No rank registered anything.
    * RegistrationTimeout: some ranks did not come within the time-out of the group. No rank registered anything.
    * RegistrationFailed: NCCL refused a window on some rank. No rank uses it.
    * PoolLimitError: the pools would pass ``SYMM_REGISTER_POOL_LIMIT``.
    * RegistrationError: the communicator ended meanwhile. It is the base of the first three.

    With ``SYMM_REGISTER_GUARD=watch`` each rank prints the first three on stderr instead of raising them, and all
    ranks go on without windows.

    """
    if disabled or Switch.host is None:
        return NO_SCOPE
    # A policy that chooses by operation has other answers for captured calls. Other scopes save the question's time.
    if operation is not None and not graph:
        graph = Switch.capturing()
    if communicator is not None:
        return _scope_of(group, communicator, graph, (operation, nbytes, dtype))
    if group is None and Switch.members is not None:
        group = Switch.members.WORLD
    try:
        scope = scopes.get((id(group), graph, (operation, nbytes, dtype)))
    except TypeError:  # what has no hash is no hint
        scope = None
    if scope is not None and scope.refs[0]() is group:
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
    try:
        scope = scopes.get(key)
    except TypeError:
        scope = None
    if scope is not None and scope.belongs_to(groups):
        return scope
    _require_hints(graph, *hints)
    windows = [memory.windows(member) for member in groups if not memory.leaves_out(member)]
    whole = len(windows) == len(groups)
    made = (memory.scope(windows, groups, graph, hints) if whole else None) or _outside(groups)
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
    try:
        known = scopes_of_others.get(key)
    except TypeError:
        known = None
    if known is not None and group is None and known[1].lives():  # addresses are used again
        return known[0]
    _require_hints(graph, *hints)
    (windows,) = memory.chosen(group, communicator)
    made = memory.scope([windows], (), graph, hints) or _outside(())
    for old, (_, found) in list(scopes_of_others.items()):  # other threads make scopes meanwhile
        if not found.lives():
            scopes_of_others.pop(old, None)
    if len(scopes_of_others) >= _MOST_SCOPES:
        scopes_of_others.clear()
    scopes_of_others[key] = made, windows
    return made


def _require_hints(graph: bool, operation: str | None, nbytes: int | None, dtype: str | None) -> None:
    if isinstance(graph, str) or not isinstance(graph, Hashable):
        raise TypeError(f"tracehook: graph is {graph!r}: expected True or False")
    if operation is not None:
        check_names(operation, "sum")
    if nbytes is not None and not is_bytes(nbytes):
        raise TypeError(f"tracehook: nbytes is {nbytes!r}: expected a number of bytes, such as 1 << 20")
    if dtype is not None and not isinstance(dtype, str):
        raise TypeError(f"tracehook: dtype is {dtype!r}: expected torch's name of a type, such as 'bfloat16'")


def _group_is_gone(number: int) -> None:
    """Let go of what belongs to a group, or its connections and threads live for ever."""
    _followed.discard(number)
    holders.pop(number, None)
    for key in [key for key in list(scopes) if number in key[:-2]]:
        scopes.pop(key, None)


def _outside(groups: Sequence[ProcessGroup]) -> Scope:
    """Ordinary memory: nothing that is made inside belongs to an outer scope, as on the ranks that have the group."""
    from tracehook import _core
    from tracehook.symmetric_memory.pool_scope import Scope

    leave = _core.leave_outside
    return Scope(_core.enter_outside, leave, leave, lambda touched, error: None, False, groups)  # noqa: ARG005


def is_symmetric(tensor: Tensor, group: ProcessGroup | None = None, *, communicator: Any = None) -> bool:
    """Return whether all of `tensor` lies in one window of `group`, so that NCCL may use its symmetric kernels.

    It is local and cheap. It does not know the other ranks' tensors; the ranks compare those at the first use.

    Args:
        tensor: a tensor of any shape and type; of a DTensor its local tensor counts.
        group: a process group with an NCCL backend; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.

    Raises:
        TypeError: `tensor` is no tensor, or `group` no process group.

    """
    if communicator is not None:
        tensor = local(tensor)
        memory = existing() if tensor.is_cuda else None
        (windows,) = memory.chosen(group, communicator) if memory is not None else (None,)
        found = windows.communicator() if windows is not None else None
        at = place(tensor)
        return found is not None and at is not None and found.holds(*at)
    if group is None and Switch.members is not None:
        group = Switch.members.WORLD
    holder = holders.get(id(group))
    if holder is None or holder[0]() is not group or type(tensor) not in ordinary_types:
        return _is_symmetric(tensor, group)
    try:
        return bool(holder[1](tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else span(tensor)))
    except RuntimeError:
        return _is_symmetric(tensor, group)  # it has no address


def _is_symmetric(tensor: Tensor, group: ProcessGroup | None) -> bool:
    mine = local(tensor)
    found = Switch.memory.holder(group) if Switch.memory is not None and tensor.is_cuda else None
    if found is None:
        return False
    import torch

    ordinary_types.update((torch.Tensor, torch.nn.Parameter))
    if group is not None:
        holders[id(group)] = (weakref.ref(group), found)
    at = place(mine)
    return at is not None and bool(found(*at))


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
    "Which path NCCL takes" in docs/symmetric.md. It is local and makes no call to NCCL. It assumes that the other
    ranks' buffers lie as this rank's do.

    Args:
        tensor: the tensor, or a DTensor, whose local tensor counts. For an operation, its output.
        group: a process group with an NCCL backend; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.
        operation: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``gather``, ``scatter``,
            ``broadcast``, ``reduce``, or torch's name of one.
        dtype: type of the elements that the operation reduces; the tensor's own if None.
        reduction: ``sum``, ``avg``, ``min``, ``max``, ``product``, ``premul_sum``, ``band``, ``bor`` or ``bxor``.
        other: input of the operation. None: it works in place, so `tensor` is the larger buffer.

    Returns:
        a named tuple (symmetric, reason, text), with the path and the local registration as attributes.

    Raises:
        TypeError: `tensor` is no tensor, or `dtype` no type.
        ValueError: `operation` or `reduction` has none of these names.

    """
    tensor = local(tensor)
    second = local(other) if other is not None else None
    asked = None
    if dtype is not None and not hasattr(dtype, "itemsize"):
        raise TypeError(f"tracehook: dtype is {dtype!r}: expected a torch.dtype, such as torch.bfloat16")
    if operation is not None:
        check_names(operation, reduction)
        asked = Asked(operation, dtype, reduction, second)
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
    elif place(tensor) is None:
        answer = Explanation(
            False,
            "not_in_pool",
            "it has no address: it is sparse or nested, or stands for a tensor, as a fake one does",
        )
    else:
        return _with_registration(memory.explain(tensor, span(tensor), group, communicator, asked), tensor, group)
    answer = answer if asked is None else answer.with_path(path_without_windows(answer))
    return _with_registration(answer, tensor, group)


def _with_registration(answer: Explanation, tensor: Tensor, group: ProcessGroup | None) -> Explanation:
    core = service().running()
    at = place(tensor) if core is not None and tensor.device.type == "cuda" else None
    if core is not None and at is not None:
        resolved = group_names.resolve(group) if group_names.any_exists() else ()
        pointer = group_names.pointer_of(resolved[0]) if resolved else 0
        answer.registration = registration.about(core, *at, pointer)
    return answer


def sync(group: Groups = None, *, communicator: Any = None) -> int:
    """Register the memory that captures left without windows, and check that the ranks still agree.

    It is collective: all ranks of the group call it at the same point, outside a capture. The ranks also compare how
    many collectives they made in windows, and where. If these differ, results since the last check may be wrong, and
    all ranks raise :class:`RegistrationMismatch`.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.

    Returns:
        the number of windows that it registered, on all groups.

    Raises:
        RuntimeError: a capture of the current stream is under way. This rank sent nothing.
        RegistrationMismatch: the ranks differ, or another rank makes another call. No rank registered anything.
        RegistrationTimeout: some ranks did not come within the time-out of the group. No rank registered
            anything.
        RegistrationFailed: NCCL refused a window on some rank. No rank uses it.

    """
    memory = existing()
    return memory.sync(memory.chosen(group, communicator)) if memory is not None else 0


def trim(group: Groups = None, *, communicator: Any = None) -> int:
    """Give memory of the group's pools that no tensor uses back to the device, on all ranks in the same order.

    It is collective: all ranks of the group call it at the same point, outside a capture and outside all scopes of the
    calling thread. It waits for the device, and also empties torch's own cache (``torch.cuda.empty_cache()``).

    A window goes only if no rank uses its segment. The memory goes when its last group has given it up. Memory of
    captured graphs stays until :func:`release_graphs`. While a device communicator of the group lives
    (``ncclDevCommCreate``), all its memory stays. Memory of scopes for several groups with different ranks goes if all
    of these groups are given together.

    While another thread of the device is in a scope or in ``use_mem_pool``, or captures, PyTorch cannot give up memory
    of pools. Then this rank offers nothing, so no rank gives anything back, and a later call does it.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.

    Returns:
        bytes that this rank gave back to the device.

    Raises:
        RuntimeError: a capture of the current stream is under way, or this thread is in a scope. This rank sent
            nothing.
        RegistrationMismatch: another rank makes another call. No rank gave anything back.
        RegistrationTimeout: some ranks did not come within the time-out of the group. No rank gave anything
            back.

    """
    memory = existing()
    return memory.trim(memory.chosen(group, communicator)) if memory is not None else 0


def pause(group: Groups = None, *, communicator: Any = None, graphs_are_gone: bool = False) -> int:
    """Give GPU memory back before the program sleeps: :func:`release_graphs`, :func:`trim` and ``ncclCommSuspend``.

    It is collective: all ranks of the group call it at the same point, outside a capture and outside all scopes of the
    calling thread, with no collective under way. The ranks compare this before NCCL waits for all of them.

    Windows, local registrations and CUDA graphs stay valid. Until :func:`resume` a call on a communicator of the group
    raises one sentence, and tracehook registers nothing with it. No CUDA graph with such a call may run: nothing can
    stop it. Groups that are suspended already stay so.

    NCCL before 2.29.7 cannot suspend, and suspends no communicator that shares resources with another one. One line on
    stderr says so, and the rest is done.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.
        graphs_are_gone: True: the program has destroyed all CUDA graphs that it captured.

    Returns:
        bytes that this rank gave back to the device, with those of NCCL that it tells of.

    Raises:
        RuntimeError: a capture of the current stream is under way, or this thread is in a scope. This rank sent
            nothing.
        RegistrationMismatch: another rank makes another call. No rank gave anything back.
        RegistrationTimeout: some ranks did not come within the time-out of the group. No rank gave anything
            back.

    """
    memory = existing()
    if memory is None:
        return 0
    if graphs_are_gone:
        memory.release_graphs()
    return memory.pause(memory.chosen(group, communicator))


def resume(group: Groups = None, *, communicator: Any = None) -> int:
    """Let NCCL have its memory again (``ncclCommResume``), where :func:`pause` or the program suspended a group.

    It is collective: all ranks of the group call it at the same point, outside a capture. tracehook then registers the
    segments that the allocator got meanwhile. Groups that are not suspended stay as they are.

    Args:
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group: see :func:`symmetric`.

    Returns:
        the number of groups that it resumed.

    Raises:
        RuntimeError: a capture of the current stream is under way. This rank sent nothing.
        RegistrationMismatch: another rank makes another call. No rank resumed anything.
        RegistrationTimeout: some ranks did not come within the time-out of the group. No rank resumed anything.
        RegistrationError: NCCL did not get its memory. The group cannot be used.

    """
    memory = existing()
    return memory.resume(memory.chosen(group, communicator)) if memory is not None else 0


def release_graphs() -> None:
    """Tell tracehook that every CUDA graph of this process captured so far is gone.

    Then :func:`trim` may give back the memory of these graphs. The call is local.
    """
    if Switch.memory is not None:
        Switch.memory.release_graphs()

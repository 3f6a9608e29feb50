"""Symmetric memory as programs see it: ``tracehook.symmetric``, ``sync``, ``trim`` and the questions about a tensor.

Imports torch, and makes the memory of this process, only at the first use.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tracehook.hook import groups as group_names
from tracehook.hook.extension import Host
from tracehook.hook.service import extend
from tracehook.log.journal import warn
from tracehook.symmetric_memory.answers import Explanation
from tracehook.symmetric_memory.scope import NO_SCOPE, NoScope, Scope

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from tracehook.symmetric_memory.meeting import Meetings
    from tracehook.symmetric_memory.memory import SymmetricMemory

    Groups: TypeAlias = ProcessGroup | Sequence[ProcessGroup] | None


class _Switch:
    """What follows the service's state; the memory is made at the first scope."""

    host: Host | None = None
    memory: SymmetricMemory | None = None
    meetings: Meetings | None = None
    members: Any = None  # torch.distributed's GroupMember, whose WORLD is the default group
    unavailable: tuple[str, str] | None = None  # why this process has no symmetric memory (code, text); warned of once


_scopes: dict[Any, Scope] = {}
_MOST_SCOPES = 1024
_followed: set[int] = set()  # ids of the groups whose end is watched
_holders: dict[int, tuple[weakref.ref[Any], Any]] = {}
_making = threading.Lock()  # one SymmetricMemory for each process; taken with none of ours held


class _Extension:
    """How the service, which must not import this room, tells it what happens."""

    @staticmethod
    def enabled(host: Host) -> None:
        """Let scopes take effect."""
        _Switch.host = host

    @staticmethod
    def disabled() -> None:
        """Make scopes do nothing. What has windows keeps them."""
        _Switch.host = None
        _scopes.clear()

    @staticmethod
    def communicator_born() -> None:
        """Hear what other ranks say of the communicator, also if this rank never enters a scope."""
        if _Switch.host is not None and _Switch.host.settings.guard != "off":
            _meetings().listen()

    @staticmethod
    def abandon() -> None:
        """In a forked child: everything here belongs to the parent."""
        global _making
        _Extension.disabled()
        _making = threading.Lock()
        _Switch.memory = _Switch.meetings = None
        _holders.clear()

    @staticmethod
    def status() -> dict[str, Any]:
        """Return ``pools`` and ``windows`` of :func:`tracehook.status`; empty before the first scope."""
        return _Switch.memory.status() if _Switch.memory is not None else {}


def symmetric(
    group: Groups = None,
    *,
    disabled: bool = False,
    graph: bool = False,
    operation: str | None = None,
    nbytes: int | None = None,
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
        disabled: True: return a shared object that does nothing.
        graph: use the memory of captured graphs also outside of a capture: for the warm-up before it, on the same
            stream.
        operation: for policies, a hint: what the tensors are for, such as ``"all_reduce"``.
        nbytes: for policies, a hint: bytes that will be allocated.

    Raises (by the scope, at its end):
        RegistrationMismatch: the ranks want different windows. Nothing was registered anywhere.
        RegistrationTimeout: some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. Nothing was registered.
        RegistrationFailed: NCCL refused a window on some rank. No rank uses it.
        PoolLimitError: ``SYMM_REGISTER_POOL_LIMIT`` is reached.
        RegistrationError: the communicator ended meanwhile. It is the base of the first three.

    With ``SYMM_REGISTER_ON_ERROR=warn`` the first three are said on stderr instead, and all ranks go on without
    windows. Does nothing if tracehook is not enabled.

    """
    if disabled or _Switch.host is None:
        return NO_SCOPE
    if group is None and _Switch.members is not None:
        group = _Switch.members.WORLD
    scope = _scopes.get((id(group), graph, operation, nbytes))
    if scope is not None and scope._refs[0]() is group:
        return scope
    return _scope(group, graph, operation, nbytes)


def _scope(group: Groups, graph: bool, operation: str | None, nbytes: int | None) -> Scope | NoScope:

    memory = _memory()
    if memory is None:
        return NO_SCOPE
    groups = group_names.resolve(group)
    if not groups:
        return _outside(())
    key = (*map(id, groups), graph, operation, nbytes)
    scope = _scopes.get(key)
    if scope is not None and scope.belongs_to(groups):
        return scope
    made = memory.scope(groups, graph, operation, nbytes) or _outside(groups)
    if len(_scopes) >= _MOST_SCOPES:  # a size hint that is another one each time
        _scopes.clear()
    _scopes[key] = made
    for member in groups:
        if id(member) not in _followed:
            _followed.add(id(member))
            weakref.finalize(member, _group_is_gone, id(member))
    return made


def _group_is_gone(number: int) -> None:
    """Let go of what belongs to a group, or its connections and threads live for ever."""
    _followed.discard(number)
    _holders.pop(number, None)
    for key in [key for key in list(_scopes) if number in key[:-3]]:
        _scopes.pop(key, None)


def _outside(groups: Sequence[ProcessGroup]) -> Scope:
    """Ordinary memory: nothing that is made inside belongs to an outer scope, as on the ranks that have the group."""
    from tracehook import _core

    leave = _core.leave_outside
    return Scope(_core.enter_outside, leave, leave, lambda touched, error: None, False, groups)  # noqa: ARG005


def is_symmetric(tensor: Tensor, group: ProcessGroup | None = None) -> bool:
    """Return whether all of `tensor` lies in one window of `group`, so that NCCL may use its symmetric kernels.

    Local and cheap; it says nothing about the other ranks' tensors, which the placement check compares at first use.
    """
    if group is None and _Switch.members is not None:
        group = _Switch.members.WORLD
    holder = _holders.get(id(group))
    if holder is None or holder[0]() is not group:
        return _is_symmetric(tensor, group)
    holds: bool = holder[1](tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else _span(tensor))
    return holds


def _is_symmetric(tensor: Tensor, group: ProcessGroup | None) -> bool:
    found = _Switch.memory.holder(group) if _Switch.memory is not None and tensor.is_cuda else None
    if found is None:
        return False
    if group is not None:
        _holders[id(group)] = (weakref.ref(group), found)
    return bool(found(tensor.data_ptr(), _span(tensor)))


def _drop_holder(group: ProcessGroup | None) -> None:
    """The group has another communicator now."""
    _holders.pop(id(group), None)


def _span(tensor: Tensor) -> int:
    """Bytes from the first to the last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def explain(tensor: Tensor, group: ProcessGroup | None = None) -> Explanation:
    """Return why `tensor` is, or is not, symmetric in `group`: a reason code and a sentence.

    Codes: ``symmetric``, ``not_cuda``, ``not_enabled``, ``not_in_pool``, ``expandable_segment``, ``no_communicator``,
    ``not_registered``, ``deferred``, ``outside``, ``other_device``, ``mismatch``, ``timeout``, ``failed``,
    ``no_symmetric_support``, ``no_nccl``, ``nccl_too_old``, ``placement``, ``unavailable``.
    """
    memory = _Switch.memory
    if tensor.device.type != "cuda":
        return Explanation(False, "not_cuda", f"the tensor is on {tensor.device}; windows are made on CUDA memory")
    unavailable = _Switch.unavailable if _Switch.host is not None else None
    if unavailable is not None:
        return Explanation(False, *unavailable)
    if memory is None:
        return Explanation(
            False,
            "not_enabled",
            "no scope was entered in this process yet, or tracehook is not enabled: set SYMM_REGISTER_HOOK=1 or call "
            "tracehook.enable(), and make the tensor inside `with tracehook.symmetric(group)`",
        )
    return memory.explain(tensor, _span(tensor), group)


def sync(group: Groups = None) -> int:
    """Register what waits for it (see :func:`symmetric`, captures), and check that the ranks still agree.

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
    memory = _existing()
    return memory.sync(group) if memory is not None else 0


def trim(group: Groups = None) -> int:
    """Give back the memory of the group's pools that no tensor uses, on all ranks in the same order.

    Collective: all ranks of the group call it at the same point, outside of a capture and of all scopes of the calling
    thread. A segment leaves only if it is unused on every rank, and its memory only when its last group has let go of
    it. What captured graphs used stays until :func:`release_graphs`. Waits for the device, and empties torch's own
    cache too (``torch.cuda.empty_cache()``). With the ``shared`` policy the memory belongs to all groups of the device:
    ranks that trim a subgroup alone have other memory afterwards than the rest, and no longer agree with it.

    While another thread is in a scope or in ``use_mem_pool`` on the device, or captures, PyTorch cannot give up memory
    of pools: then this rank offers nothing, so that no rank gives anything back, and a later call does it.

    Returns:
        bytes that this rank gave back to the device.

    Raises:
        RuntimeError: the current stream is captured, or this thread is in a scope. Nothing was sent.
        RegistrationMismatch: another rank is at another act. Nothing was given back.
        RegistrationTimeout: some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. Nothing was given back.

    """
    memory = _existing()
    return memory.trim(group) if memory is not None else 0


def release_graphs() -> None:
    """Say that every CUDA graph which was captured so far is gone, so that :func:`trim` may give back its memory."""
    if _Switch.memory is not None:
        _Switch.memory.release_graphs()


def _meetings() -> Meetings:
    if _Switch.meetings is None:
        from tracehook.symmetric_memory.meeting import Meetings

        _Switch.meetings = Meetings(_know)
    return _Switch.meetings


def _know(key: str) -> None:
    """Find the communicator of which another rank asks: from now on this process answers for it."""
    from tracehook import _core

    pointers = [row["pointer"] for row in _core.communicators() if f"{row['key']:016x}" == key]
    found = _core.find_communicator(pointers[0]) if pointers else None
    memory = _memory() if found is not None else None
    if memory is not None:
        memory.windows_of(found)


def _existing() -> SymmetricMemory | None:
    """What was made while tracehook was enabled can be looked after also when it is not any more."""
    return _Switch.memory if _Switch.memory is not None else _memory()


def _memory() -> SymmetricMemory | None:
    if _Switch.memory is None and _Switch.host is not None:
        _make_memory(_Switch.host)
    return _Switch.memory if _Switch.host is not None else None


def _make_memory(host: Host) -> None:
    """Make this process's symmetric memory; one line on stderr if there cannot be one.

    Brings CUDA up: who opens a scope is about to use it.
    """
    import torch
    from torch.distributed.distributed_c10d import GroupMember

    if torch.cuda.is_available():
        torch.cuda.init()  # before any lock of ours: torch takes one under which it calls the service
    with _making:
        if _Switch.memory is None and _Switch.unavailable is None:
            _Switch.unavailable = host.open_bank()
            if _Switch.unavailable is None:
                from tracehook.symmetric_memory.memory import SymmetricMemory

                _Switch.memory = SymmetricMemory(host.settings, host.push, _drop_holder, _meetings())
            else:
                warn(f"no symmetric memory, scopes do nothing: {_Switch.unavailable[1]}")
    _Switch.members = GroupMember


extend(_Extension())

"""From torch's process groups to the communicators behind them."""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.hook import registrants
from tracehook.hook.group_names import name_of
from tracehook.hook.job import attempt
from tracehook.hook.torch_modes import empty_bytes, past_modes
from tracehook.log import clock

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store


_FOREIGN = (
    "the process group was destroyed, or the program made it without torch.distributed. Of such a group give the NCCL "
    "communicator: tracehook.use_store(store), then communicator=backend._comm_ptr() in place of the group"
)
NO_GROUP = "there is no process group: call torch.distributed.init_process_group first"
_USUAL_TIMEOUT = 600.0  # seconds: of torch's groups with NCCL
_BETWEEN_TRIES = 0.1  # seconds
_HASHED = 40  # letters of a name that torch hashes
_REACHED = 1.0  # seconds within which a machine answers, or torch shall find out
# What a machine answers that has no store, and what this one says of addresses that it cannot reach, such as IPv6's.
_NOBODY_THERE = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EHOSTUNREACH, errno.ENETUNREACH}


class Found(NamedTuple):
    """A live communicator: raw ``ncclComm_t``, device index, the group's name (equal on all its ranks), its backend."""

    pointer: int
    device: int
    name: str
    backend: Any


def existing() -> Iterator[Found]:
    """Yield the NCCL communicator of every process group of this process that has one already.

    torch offers no list of communicators: the lazily made point-to-point ones (one per pair of ranks) are not found
    here. They are seen when they are made, if tracehook was enabled before.
    """
    if not any_exists():
        return
    world = _world()
    for group in list(world.pg_map):
        backend = _nccl_backend(group)
        if backend is not None:
            name = shared_name(world.pg_names.get(group, "?"))
            for ordinal, (device, pointer) in enumerate(_communicators(backend)):
                # One process may hold several; device numbers differ between ranks, their order need not.
                yield Found(pointer, device, f"{name}#{ordinal}" if ordinal else name, backend)


def shared_name(group_name: str) -> str:
    """Return what the ranks of a group call its communicator, if tracehook did not see how NCCL made it."""
    return f"{attempt()}group:{group_name}"


def adopt_existing(core: Any) -> None:
    """Have the native core follow the communicators that are there already."""
    for found in existing():
        by_itself = registrants.registers_itself(found.backend)
        core.adopt_communicator(found.pointer, found.device, found.name, by_itself)


class GroupFacts(NamedTuple):
    """What all ranks of a group know alike (names, ranks, store), and this rank's own place in it."""

    name: str
    rank: int
    ranks: int
    device: int
    store: Any
    backend: Any
    desc: str | None = None  # see GroupName
    members: tuple[int, ...] = ()


def any_exists() -> bool:
    """Whether there is a default group, and so whether there can be others."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


_chosen_store: Any = None


def use_store(store: Store | None) -> None:
    """See :func:`tracehook.use_store`."""
    from torch.distributed import Store

    global _chosen_store
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"tracehook.use_store: expected a torch.distributed.Store or None, got {store!r}")
    _chosen_store = store


def job_store() -> Any:
    """Return a store that all ranks of the job share: the chosen one, or the default group's; None without either."""
    if _chosen_store is not None or not any_exists():
        return _chosen_store
    import torch.distributed as dist

    default = dist.group.WORLD  # None, if another thread destroys it just now
    found = _world().pg_map.get(default) if default is not None else None
    return found[1] if found is not None else None


def job_ranks() -> tuple[int, ...]:
    """Return all ranks of the job; none before there is a default group."""
    import torch.distributed as dist

    return tuple(range(dist.get_world_size())) if any_exists() else ()


def stores() -> list[Any]:
    """Return the stores of this process's groups: the job's, and those that groups have of their own."""
    found = [job_store()]
    if any_exists():
        found += [store for _, store in list(_world().pg_map.values())]
    return [store for store in found if store is not None]


def timeout(backend: Any, /) -> float:
    """Return the seconds that torch lets a call of a group wait; of another backend than NCCL's the usual ones."""
    set_by_torch = getattr(getattr(backend, "options", None), "_timeout", None)
    return set_by_torch.total_seconds() if set_by_torch is not None else _USUAL_TIMEOUT


def resolve(group: ProcessGroup | Sequence[ProcessGroup] | None) -> tuple[ProcessGroup, ...]:
    """Return the groups that are meant: the default group for None; without those that this rank is no member of."""
    import torch.distributed as dist

    is_there = any_exists()
    if group is None and not is_there:
        raise RuntimeError(f"tracehook: {NO_GROUP}")
    given = (group,) if isinstance(group, str) or not isinstance(group, Sequence) else group
    members = [one if one is not None else dist.group.WORLD for one in given]
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    found = tuple(member for member in members if member is not outside and member is not None)
    for one in found:
        if not isinstance(one, dist.ProcessGroup):
            raise TypeError(
                f"tracehook: expected a process group, such as dist.new_group(...) or mesh.get_group(...), got {one!r}"
            )
    if not is_there:
        raise RuntimeError(f"tracehook: {_FOREIGN if found else NO_GROUP}")
    return found


def resolve_one(group: ProcessGroup | None) -> ProcessGroup | None:
    """Return the one group that is meant, as :func:`resolve` does; None if this rank is no member of it."""
    found = resolve(group)
    if isinstance(group, Sequence) and not isinstance(group, str) and len(group) != 1:
        raise TypeError(f"tracehook: expected one process group, got {len(group)} of them")
    return found[0] if found else None


def facts(group: ProcessGroup) -> GroupFacts:
    """Return the facts of a group with an NCCL backend."""
    backend = _nccl_backend(group)
    if backend is None:
        kind = f"a {type(_cuda_backend(group)).__name__} of torch 2.14" if keeps_tensors(group) else "no NCCL backend"
        raise RuntimeError(f"tracehook: group {group.group_name} has {kind}, so it has no windows")
    return facts_of_any(group, backend)


def keeps_tensors(group: ProcessGroup) -> bool:
    """Whether torch keeps the tensors of this group's calls until a later call finds the device done.

    The ranks would get different places then. It is so with nccl2 of torch 2.14, which tells no communicator either.
    """
    backend = _cuda_backend(group)
    return registrants.registers_itself(backend) and not hasattr(backend, "_comm_ptr")


def facts_of_any(group: ProcessGroup, backend: Any = None) -> GroupFacts:
    """Return the facts of a group; `backend`: that of NCCL, if it shall have one."""
    if not is_known(group):
        raise RuntimeError(f"tracehook: {_FOREIGN}")
    _, store = _world().pg_map[group]
    bound = group.bound_device_id
    device = bound.index if bound is not None else _used_device(backend)
    _, desc, members = name_of(group)
    # Not by torch's table of global ranks: in a group that joins several launches it has the numbers of none of them.
    return GroupFacts(group.group_name, group.rank(), group.size(), device, store, backend, desc, members)


def key_of_split(group: ProcessGroup) -> int:
    """Return the communicator's key of a group that `split_group` made; 0 for another group.

    torch before 2.14 hashes the name of such a group from its ranks and from how many groups the process has, so the
    name differs between ranks that are in other numbers of groups. The communicator is there from the beginning.
    """
    from tracehook import _core

    backend = _nccl_backend(group)
    if backend is None or group.bound_device_id is None or len(group.group_name) != _HASHED:
        return 0
    found = _core.find_communicator(_pointer_on(backend, group.bound_device_id.index))
    return int(found.key) if found is not None else 0


def _used_device(backend: Any) -> int:
    """Return the device of a group that the program bound to none.

    The device of its communicator comes first. A thread that chose none has device 0: there the device counts that
    all other communicators have, or else the only one that the process uses.
    """
    import torch

    current = int(torch.cuda.current_device())
    if own := [device for device, _ in _communicators(backend)]:
        return current if current in own else own[0]
    if current != 0:
        return current
    devices = _used_by_communicators() or {
        device for device in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(device)
    }
    return devices.pop() if len(devices) == 1 else current


def _used_by_communicators() -> set[int]:
    from tracehook import _core

    with contextlib.suppress(RuntimeError):  # tracehook is not enabled yet
        return {row["device"] for row in _core.communicators()}
    return set()


def is_known(group: ProcessGroup) -> bool:
    """Whether torch has the group, or has it no more."""
    return group in _world().pg_map


def _world() -> Any:
    """Return torch's tables of groups."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world


def is_made_with_group(group: ProcessGroup | None, found: GroupFacts) -> bool:
    """Whether torch makes the communicator with the group, and not at the first collective."""
    bound = group is not None and group.bound_device_id is not None
    return bound and not getattr(getattr(found.backend, "options", None), "lazy_init", False)


def had_communicator(group: ProcessGroup | None, found: GroupFacts) -> bool:
    """Whether a group that has no communicator now had one: made with the group, or, as torch says, aborted."""
    import torch

    if is_made_with_group(group, found):
        return True
    with torch.cuda.device(found.device):
        try:
            found.backend._comm_ptr()
        except RuntimeError:  # the stock group's answer for what was aborted; 0 is that for what it did not make yet
            return True
    return False


def has_begun(backend: Any) -> bool:
    """Whether some thread has begun the first collective: torch counts it, and then makes a communicator for it."""
    try:
        return bool(backend._get_sequence_number_for_group()) and not _communicators(backend)
    except (AttributeError, RuntimeError):  # a backend that does not count
        return False


def make_communicator(group: ProcessGroup | None, found: GroupFacts) -> None:
    """Have torch make the communicator that it would make at the first collective. All ranks call this."""
    import torch
    import torch.distributed as dist

    # Of nothing, so it takes no memory of a pool. After torch's `eager_connect_single_device` all sends of the group
    # would wait for each other on this communicator: torch would make none for each pair of ranks any more.
    # Not on the current stream: there another thread may run collectives of another group. If the order of the two
    # differs between ranks, each waits for the other.
    with past_modes(), torch.cuda.stream(torch.cuda.Stream(found.device)):
        found.backend.allreduce([empty_bytes(0, found.device)]).wait()
        if group is not None and not communicator_pointer(found):
            dist.barrier(group, device_ids=[found.device])  # some groups wait for a collective nevertheless


def pointer_of(group: ProcessGroup) -> int:
    """Return the raw ``ncclComm_t`` of any group on its device, or 0 if it has none, or not yet."""
    backend = _nccl_backend(group)
    return communicator_pointer(facts_of_any(group, backend)) if backend is not None else 0


def communicator_pointer(found: GroupFacts) -> int:
    """Return the raw ``ncclComm_t`` of the group on its device, or 0 if torch did not make it yet."""
    return _pointer_on(found.backend, found.device)


def _pointer_on(backend: Any, device: int) -> int:
    """Return the raw ``ncclComm_t`` of a backend on a device, or 0 if it has none."""
    import torch

    with torch.cuda.device(device):
        try:
            return int(backend._comm_ptr())
        except RuntimeError:
            return 0  # aborted, or ended otherwise: nothing to adopt


def _communicators(backend: Any) -> list[tuple[int, int]]:
    """Return (device, pointer) of each of the backend's communicators: torch tells that of the current device only."""
    import torch

    if not hasattr(backend, "_comm_ptr"):
        return []
    found = []
    for device in range(torch.cuda.device_count()):
        # Looking must not make a context where the program has none.
        if torch._C._cuda_hasPrimaryContext(device):
            pointer = _pointer_on(backend, device)
            if pointer:
                found.append((device, pointer))
    return found


def _nccl_backend(group: Any) -> Any | None:
    """Return the backend of a group that can tell its communicator; None if it has none."""
    backend = _cuda_backend(group)
    return backend if hasattr(backend, "_comm_ptr") else None


@functools.cache  # a mode of the program sees each one that is made
def _cuda() -> Any:
    import torch

    return torch.device("cuda")


def _cuda_backend(group: Any) -> Any | None:
    try:
        backend = group._get_backend(_cuda())
    except RuntimeError:
        return None  # a group without a CUDA backend
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    return getattr(backend, "wrapped_pg", backend)


def cloned_store(store: Store, patience: float = 0.0) -> Store:
    """Return a copy of `store` with a separate connection. A wait on the copy blocks no other user of the store.

    torch tries to reach a store until the time-out of `store`. With `patience` (seconds) it tries again as long as
    somebody listens there: a store may end just after it was found there, and another one may answer late.

    Raises:
        RuntimeError: the store has ended.

    """
    end = clock.monotonic() + patience
    while True:
        _require_listener(below(store))
        try:
            return store.clone()
        except (AttributeError, RuntimeError) as problem:
            if not _is_server(below(store)):
                return store  # one that is written in Python may have no clone
            if isinstance(problem, AttributeError) or clock.monotonic() >= end:
                raise
        clock.sleep(_BETWEEN_TRIES)


def below(store: Any) -> Any:
    """Return the store that lies under all prefixes of `store`."""
    while (found := getattr(store, "underlying_store", None)) is not None:
        store = found
    return store


def _require_listener(store: Any) -> None:
    if not _is_server(store):
        return
    try:  # bytes, because a name in text imports a module whose name a file of the program may have
        socket.create_connection((store.host.encode(), store.port), _REACHED, all_errors=True).close()
    except ExceptionGroup as failed:  # one for each address of the host
        numbers = {getattr(problem, "errno", None) for problem in failed.exceptions}
        if errno.ECONNREFUSED in numbers and numbers <= _NOBODY_THERE:
            at = f"{store.host}:{store.port}"
            raise RuntimeError(f"no store is at {at}: {failed.exceptions[-1]}") from failed
    except Exception:
        pass  # whether that matters torch finds out; the program may have put its own things into Python's sockets


def _is_server(store: Any) -> bool:
    """Whether it is the connection to a store of another process, or may be."""
    return isinstance(getattr(store, "host", None), str) and isinstance(getattr(store, "port", None), int)


def all_gather_single(output: Any, shard: Any, group: ProcessGroup | None, async_op: bool = False) -> Any:
    """Call what torch before 2.13 calls ``all_gather_into_tensor``, and later deprecated under that name."""
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(output, shard, group=group, async_op=async_op)


def reduce_scatter_single(output: Any, whole: Any, op: Any, group: ProcessGroup | None, async_op: bool = False) -> Any:
    """Call what torch before 2.13 calls ``reduce_scatter_tensor``, and later deprecated under that name."""
    import torch.distributed as dist

    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(output, whole, op=op, group=group, async_op=async_op)

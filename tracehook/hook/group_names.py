"""What people call a process group of torch, and which ranks of the job are in it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from tracehook.log.text import encodable

# What torch writes where the program gave no description.
_OF_TORCH = ("", "undefined", "default", "default_pg", "mesh_default")


class GroupName(NamedTuple):
    """The names of a group, equal on all its ranks."""

    name: str  # torch's
    desc: str | None  # the program's: a description, or the name of a dimension of a mesh
    members: tuple[int, ...]  # global ranks, in the order of the group; empty if torch does not know them

    @property
    def label(self) -> str:
        """What messages call the group."""
        return self.desc or self.name


def name_of(group: Any) -> GroupName:
    """Return the names of a group. Asks Python's side of torch only, so it waits for nobody."""
    ranks = _c10d()._world.pg_group_ranks.get(group) or {}
    members = tuple(sorted(ranks, key=ranks.__getitem__))
    known = members if len(members) == group.size() else ()
    return GroupName(encodable(group.group_name), _described(group.group_desc), known)


def all_groups() -> list[Any]:
    """Return the groups of this process that may have a communicator of NCCL, the oldest first."""
    return [group for group, backend in with_backends() if "nccl" in backend]


def with_backends() -> list[tuple[Any, str]]:
    """Return the groups of this process and what their backends are called, the oldest first."""
    c10d = _c10d()
    found = list(c10d._world.pg_map.items()) if c10d is not None else []
    return [(group, str(backend)) for group, (backend, _) in found]


def own_place() -> tuple[int, int] | None:
    """Return this process's rank in the job and the number of ranks; None as long as there is no default group."""
    c10d = _c10d()
    world = c10d.GroupMember.WORLD if c10d is not None else None
    # One process may simulate a group of many: its rank is none of a job.
    if world is None or c10d.get_backend(world) == "fake":
        return None
    return world.rank(), world.size()


def _c10d() -> Any:
    """Return torch's module of groups if the program imported it: looking must not import it."""
    return sys.modules.get("torch.distributed.distributed_c10d")


def _described(text: str) -> str | None:
    if text.partition(":")[0] in _OF_TORCH:
        return None
    # torch calls a dimension without a name mesh_dim_0, and one with a name mesh_tp.
    return encodable(text if text.startswith("mesh_dim_") else text.removeprefix("mesh_"))

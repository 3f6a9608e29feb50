"""The groups whose scopes take memory of each pool, and the end of a pool when they are gone."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence, Set

import torch.distributed as dist

from tracehook import _core
from tracehook.hook import background, groups
from tracehook.log import threads
from tracehook.symmetric_memory.pool_choice import GROUP_POOL, SHARED_POOL
from tracehook.symmetric_memory.pools import PoolPair, Pools
from tracehook.symmetric_memory.windows import GroupWindows

LOOK = 0.25  # seconds between two looks whether the groups of a pool are gone


class _Users:
    """The groups of one pool. Not for several threads."""

    def __init__(self, windows: Sequence[GroupWindows], is_of_one_group: bool) -> None:
        self.groups = weakref.WeakSet(windows)
        self._has_all_ranks = is_of_one_group or len({found.partition for found in windows}) == 1
        world = None if is_of_one_group else dist.group.WORLD
        self._world = weakref.ref(world) if world is not None else None  # whose end all ranks come to alike

    def are_gone(self) -> bool:
        """Whether no later scope may take memory of the pool."""
        world = self._world() if self._world is not None else None
        return not self._living() and (world is None or not groups.is_known(world))

    def may_trim(self, names: Set[str]) -> bool:
        """Whether all ranks that take memory of the pool are in one of these groups, or in all of them together."""
        living = {found.facts.name for found in self._living()}
        return living <= names or (self._has_all_ranks and bool(living & names))

    def _living(self) -> list[GroupWindows]:
        return [found for found in self.groups if found.is_in_use()]


class PoolUsers:
    """The groups of all pools. Any thread.

    When the groups of a pool are gone, what no tensor uses of it becomes a part of torch's cache, without a call of the
    program: so ``torch.cuda.empty_cache()`` gives it back, and torch does so before it runs out of memory.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._users: dict[str, _Users] = {}
        self._unemptied: set[int] = set()  # devices of pools that have ended, whose memory torch may hold
        self._lock = threading.RLock()
        self._thread: threads.Thread | None = None
        self._over = threading.Event()

    def pair(self, pool: str, device: int, windows: Sequence[GroupWindows]) -> PoolPair:
        """Return the pool for a scope of these groups, after those whose groups are gone gave their memory back."""
        self.end_unused()
        users = _Users(windows, is_of_one_group=pool.startswith(GROUP_POOL))
        with self._lock:  # no other thread finds the pool gone meanwhile
            self._users.setdefault(pool, users).groups.update(windows)
            if self._thread is None:
                self._thread = background.start(self, self._follow, "tracehook-pools")
            return self._pools.pair(pool, device)

    def may_trim(self, names: Set[str]) -> set[str]:
        """Return the pools that these groups may give back without others, and the one that is nobody's."""
        with self._lock:
            found = {pool for pool, users in self._users.items() if users.may_trim(names)}
            return found | ({SHARED_POOL} - self._users.keys())

    def end_unused(self) -> None:
        """Give up the pools whose groups are gone, and give their memory to the device.

        A new group gets a new pool even if it has the name of an older one: its other ranks may be new processes.
        """
        with self._lock:
            self._drop_unused()
            devices = set(self._unemptied)
        emptied = {device for device in devices if self._pools.give_up(device)}
        if emptied:
            _core.release_idle()
            with self._lock:
                self._unemptied -= emptied

    def end_soon(self) -> None:
        """At exit: look no more."""
        self._over.set()

    def _drop_unused(self) -> None:
        gone = {pool for pool, users in self._users.items() if users.are_gone()}
        self._unemptied |= self._pools.forget(gone)
        for pool in gone:
            del self._users[pool]

    def _follow(self) -> None:
        while not self._over.wait(LOOK):
            with self._lock:
                self._drop_unused()
                devices = list(self._unemptied)
            for device in devices:
                with contextlib.suppress(RuntimeError):  # of torch's: the next scope tries again
                    _core.drop_replaced_pools(device)
            with self._lock:
                if not self._users:
                    self._thread = None
                    return

"""Symmetric memory of this process: pools, groups and policies, put together. Made at the first scope."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from tracehook import _core
from tracehook.agreement.store_session import StoreSession, StoreSessions
from tracehook.errors import RegistrationError
from tracehook.hook import groups
from tracehook.log.stderr import say_once, warn
from tracehook.log.text import in_bytes
from tracehook.settings import Settings
from tracehook.symmetric_memory import stuck, suspension
from tracehook.symmetric_memory.answers import Asked, Explanation
from tracehook.symmetric_memory.explain import explain
from tracehook.symmetric_memory.handle import handle
from tracehook.symmetric_memory.others import OtherCommunicators
from tracehook.symmetric_memory.placement import PlacementCheck
from tracehook.symmetric_memory.pool_choice import SHARED_POOL, PoolChoice
from tracehook.symmetric_memory.pool_scope import Scope
from tracehook.symmetric_memory.pool_users import PoolUsers
from tracehook.symmetric_memory.pools import OpenScope, PoolLimitError, Pools, explain_out_of_memory
from tracehook.symmetric_memory.scope import left_to_python
from tracehook.symmetric_memory.stall_watch import StallWatch
from tracehook.symmetric_memory.windows import NO_WINDOW, GroupWindows, in_order

Ends = Callable[[GroupWindows], int]  # how many scopes of a group ended since its last call

_KEEPS_TENSORS = (
    "groups of nccl2 of torch 2.14 have no symmetric memory, because it frees tensors of calls at another point on "
    "each rank: set TORCH_DIST_USE_NCCL2=0, or take torch 2.15"
)


class SymmetricMemory:
    """See :func:`tracehook.symmetric`. One for each process; any thread."""

    def __init__(
        self,
        settings: Settings,
        push: Callable[..., None],
        on_new_communicator: Callable[[ProcessGroup | None], None],
        sessions: StoreSessions,
    ) -> None:
        self._settings = settings
        self.push = push
        self._on_new_communicator = on_new_communicator
        self._owners: list[str] = [""]
        self._pools = Pools(self._owners)
        self._stalls = StallWatch(settings.timeout, self._report_stall)
        self._pool_choice = PoolChoice(settings.policy, push)
        self._groups: dict[int, GroupWindows] = {}  # by id of the torch object
        self._users = PoolUsers(self._pools)
        self._lock = threading.RLock()
        self._sessions = sessions
        self._others = OtherCommunicators(settings, self._stalls, self._sessions)
        self._placement = PlacementCheck(self._windows_of)
        _core.set_verification(settings.guard != "off", left_to_python(self._placement))

    # --- scopes ---

    def scope(
        self,
        windows: Sequence[GroupWindows],
        process_groups: Sequence[ProcessGroup],
        graph: bool,
        hints: tuple[str | None, int | None, str | None],
    ) -> Scope | None:
        """Make the scope for these groups, None if a policy wants ordinary memory; see :func:`tracehook.symmetric`.

        `hints`: operation, bytes and type, if the program said them.
        """
        devices = {found.facts.device for found in windows}
        if len(devices) != 1:
            raise ValueError(f"the groups of one scope are on one device; these are on {sorted(devices)}")
        device = devices.pop()
        pool = self._pool_choice.pool(windows, device, graph, hints)
        if pool is None:
            return None
        pair = self._users.pair(pool, device, windows)
        native = _core.PoolScope(pair.eager, pair.graph, self._owner(windows))
        native.set_communicators([found.communicator() for found in windows])
        ended = ScopeEnd(self, native, windows, device)
        return Scope(native.enter, native.leave, native.pause, ended, graph, process_groups)

    def unregistered(self, device: int, finish: Callable[[list[int] | None, BaseException | None], None]) -> Scope:
        """Make a scope of the shared pool that registers nothing; `finish` gets the segments that were touched."""
        pair = self._pools.pair(SHARED_POOL, device)
        native = _core.PoolScope(pair.eager, pair.graph, 0)
        return Scope(native.enter, native.leave, native.pause, finish, False, ())

    def _owner(self, windows: Sequence[GroupWindows]) -> int:
        label = " and ".join(_label(found) for found in windows)
        with self._lock:
            if label not in self._owners:
                self._owners.append(label)
            return self._owners.index(label)

    def windows(self, group: ProcessGroup) -> GroupWindows:
        """Return the windows of a group; made at the first call."""
        with self._lock:
            found = self._groups.get(id(group))
            if found is None or found.group() is not group:
                found = GroupWindows(group, self._settings, self._stalls, self._sessions, self._on_new_communicator)
                self._groups[id(group)] = found
                weakref.finalize(group, self._groups.pop, id(group), None)
            return found

    def leaves_out(self, group: ProcessGroup) -> str:
        """Return why a group has no symmetric memory, or "" if it may have some. tracehook prints the reason once."""
        if not groups.keeps_tensors(group):
            return ""
        say_once(_KEEPS_TENSORS)
        return _KEEPS_TENSORS

    def chosen(self, group: Any, communicator: Any) -> list[GroupWindows]:
        """Return the windows of the groups that are meant, or of a communicator that torch did not make.

        Raises:
            TypeError, ValueError, RuntimeError: see :func:`tracehook.symmetric`.

        """
        if communicator is None:
            return [self.windows(one) for one in groups.resolve(group) if not self.leaves_out(one)]
        if group is not None:
            raise ValueError("tracehook: a group and a communicator were given: give one of them")
        pointer = handle(communicator)
        native = _core.find_communicator(pointer)
        if native is None:
            raise RuntimeError(
                f"tracehook does not know communicator {pointer:#x}: it has ended, or was made before tracehook was "
                "enabled, by other code than torch; then call tracehook.attach_communicator(pointer) first"
            )
        found = self.windows_of(native)
        if found is None:
            raise RuntimeError(
                f"tracehook: the ranks of communicator {native.key:016x} have no store to agree at: call "
                "torch.distributed.init_process_group, or tracehook.use_store(store), on all ranks before"
            )
        return [found]

    def register(self, windows: Sequence[GroupWindows], segments: Sequence[int], ends: Ends) -> None:
        """At the end of a scope: register what is missing, group by group in an order that all ranks share."""
        sizes = {segment.id: segment.size for segment in _core.pool_segments()}
        for found in in_order(windows):
            if found.refused is None:
                self._guarded(found, lambda: found.register(segments, sizes, ends(found)))  # noqa: B023

    def _guarded(self, found: GroupWindows, act: Callable[[], int | None]) -> int:
        """Run a collective act; with ``SYMM_REGISTER_GUARD=watch`` its failure, alike on all ranks, is only said."""
        try:
            count = act()
        except RegistrationError as problem:
            if found.guard == "on":
                raise
            warn(f"{problem}; going on without these windows (SYMM_REGISTER_GUARD={found.guard})")
            return 0
        if found.refused is not None and found.refused[0] == "no_symmetric_support":
            say_once(NO_WINDOW, f"({found.about}); tracehook.explain(tensor, group) says it of others")
        return count or 0

    # --- the acts of all ranks that are asked for ---

    def sync(self, chosen: Sequence[GroupWindows]) -> int:
        """See :func:`tracehook.sync`."""
        sizes = {segment.id: segment.size for segment in _core.pool_segments()}
        self._refuse_what_waits("sync", chosen)
        for found in chosen:
            found.require_awake()
        return sum(self._guarded(found, lambda: found.sync(sizes)) for found in in_order(chosen))  # noqa: B023

    def meet(self, found: GroupWindows, what: str, entries: Sequence[str]) -> None:
        """Return when all ranks of a group have come to this call, with equal entries. Nothing with the guard off."""
        self._refuse_what_waits(what, [found])
        found.require_awake()
        if found.guard != "off":
            self._guarded(found, lambda: found.meet(found.connect(), what, entries))

    def trim(self, chosen: Sequence[GroupWindows]) -> int:
        """See :func:`tracehook.trim`."""
        self._refuse_what_waits("trim", chosen)
        for found in chosen:
            found.require_awake()
        self._refuse_in_scope("trim")
        # Before anything is given back: a rank that does so alone would allocate elsewhere from then on.
        for found in in_order(chosen):
            communicator = found.communicator()
            if communicator is not None:
                self._guarded(found, lambda: found.meet(communicator, "trim", ()))  # noqa: B023
        before = sum(segment.size for segment in _core.pool_segments())
        self._users.end_unused()
        pools = self._users.may_trim({found.facts.name for found in chosen})
        quiet = {device: self._pools.release_cache(device, pools) for device in {one.facts.device for one in chosen}}
        for found in in_order(chosen):
            # Beside a capture nothing may be deregistered: that waits for the device.
            can_go = [segment for segment in _core.pool_segments() if segment.retired and quiet[found.facts.device]]
            retired = {segment.id: segment.size for segment in can_go}
            self._guarded(found, lambda: found.trim(retired))  # noqa: B023
        if all(quiet.values()):
            _core.release_idle()
        return before - sum(segment.size for segment in _core.pool_segments())

    def release_graphs(self) -> None:
        """See :func:`tracehook.release_graphs`."""
        self._pools.graphs_are_gone()
        for found in self._all():
            communicator = found.communicator()
            if communicator is not None:
                communicator.unpin()

    def used(self) -> list[GroupWindows]:
        """Return the groups that have windows, each once: these are alike on all ranks, because all made them."""
        of_communicators: dict[int, GroupWindows] = {}
        for found in self._all():
            communicator = found.known
            if communicator is not None and not communicator.dead and communicator.windows():
                of_communicators.setdefault(communicator.id, found)
        return list(of_communicators.values())

    def pause(self, chosen: Sequence[GroupWindows]) -> int:
        """See :func:`tracehook.pause`."""
        self._refuse_what_waits("pause", chosen)
        self._refuse_in_scope("pause")
        return suspension.pause(chosen, self.trim)

    def resume(self, chosen: Sequence[GroupWindows]) -> int:
        """See :func:`tracehook.resume`."""
        self._refuse_what_waits("resume", chosen)
        return suspension.resume(chosen)

    @staticmethod
    def _refuse_in_scope(what: str) -> None:
        if _core.in_scope():
            raise RuntimeError(
                f"tracehook.{what}: this thread is inside `with tracehook.symmetric(...)`, whose memory {what} would "
                f"give back: call {what} after the scope"
            )

    @staticmethod
    def defers(device: int) -> bool:
        """Whether this thread may register no window now: it captures, or has a group of NCCL calls open."""
        return bool(_core.capturing(device) or _core.in_nccl_group())

    @staticmethod
    def _refuse_what_waits(what: str, chosen: Sequence[GroupWindows]) -> None:
        """Raise if this thread captures, or has a group of NCCL calls open: NCCL carries out nothing before the end."""
        if _core.in_nccl_group():
            raise RuntimeError(
                f"tracehook.{what} waits for other ranks, so it cannot be called between ncclGroupStart and "
                "ncclGroupEnd (torch's coalescing manager is such a group): call it after the group"
            )
        if any(_core.capturing(found.facts.device) for found in chosen):
            raise RuntimeError(f"tracehook.{what} waits for other ranks, so it cannot be captured: call it outside")

    # --- looking ---

    def holder(self, group: ProcessGroup | None) -> Callable[[int, int], bool] | None:
        """Return what tells whether (address, bytes) lies in a window of the group."""
        resolved = groups.resolve((group,)) if groups.any_exists() else ()
        found = self._groups.get(id(resolved[0])) if resolved else None
        communicator = found.communicator() if found is not None else None
        return communicator.holder() if communicator is not None else None

    def explain(self, tensor: Tensor, nbytes: int, group: Any, communicator: Any, asked: Asked | None) -> Explanation:
        """See :func:`tracehook.explain`."""
        if communicator is not None:
            return explain(tensor, nbytes, self.chosen(group, communicator)[0], self._pools, asked)
        resolved = groups.resolve(group) if groups.any_exists() else ()
        if resolved and (why := self.leaves_out(resolved[0])):
            return Explanation(False, "no_symmetric_support", why)
        return explain(tensor, nbytes, self.windows(resolved[0]) if resolved else None, self._pools, asked)

    def status(self) -> dict[str, Any]:
        """Return ``pools`` (by pool and device), ``windows`` (by group) and ``scopes`` (by thread)."""
        pools: dict[tuple[int, int], dict[str, Any]] = {}
        for segment in _core.pool_segments():
            place = {"pool": self._pools.name(segment.pool), "device": segment.device}
            new = {**place, "segments": 0, "bytes": 0, "retired_bytes": 0}
            row = pools.setdefault((segment.pool, segment.device), new)
            row["segments"] += 1
            row["bytes"] += segment.size
            row["retired_bytes"] += segment.size if segment.retired else 0
        windows, known = [], set()
        for found in self._all():
            communicator = found.known
            if communicator is not None:
                # A thread may have asked of a communicator before its group did. Then it stands here twice.
                if communicator.id in known:
                    continue
                known.add(communicator.id)
            held = communicator.windows() if communicator is not None and not communicator.dead else []
            windows.append(
                {
                    "group": found.facts.name,
                    "windows": len(held),
                    "bytes": sum(window["size"] for window in held),
                    "pinned": sum(window["pinned"] for window in held),
                    "deferred": len(found.deferred),
                    "refused": found.refused[0] if found.refused else None,
                }
            )
        scopes = [row._asdict() for row in self.open_scopes()]
        return {"pools": list(pools.values()), "windows": windows, "scopes": scopes}

    def _all(self) -> list[GroupWindows]:
        return [*self._groups.values(), *self._others.living()]

    def open_scopes(self) -> list[OpenScope]:
        """Return the open scopes of all threads."""
        return self._pools.open_scopes()

    # --- what went wrong ---

    def limit_error(self) -> PoolLimitError:
        """Return the exception for a pool that may not grow, with the numbers and the largest owners."""
        last = _core.last_refusal()
        device, wanted, held, limit = last.device, last.wanted, last.held, last.limit
        self.push("pool.limit", wanted=wanted, held=held)
        owners: dict[str, int] = defaultdict(int)
        for segment in _core.pool_segments():
            if segment.device == device:
                owners[self._owners[segment.owner] or "no group"] += segment.size
        largest = sorted(owners.items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{name} {in_bytes(size)}" for name, size in largest) or "none"
        return PoolLimitError(
            f"tracehook: {in_bytes(wanted)} more would pass SYMM_REGISTER_POOL_LIMIT={limit} ({in_bytes(limit)}): the "
            f"pools of device {device} hold {in_bytes(held)} (largest: {shown}); raise the limit, or call "
            "tracehook.trim(group) outside of all scopes"
        )

    def _windows_of(self, number: int) -> GroupWindows | None:
        for found in list(self._groups.values()):
            if found.known is not None and found.known.id == number:
                return found
        return self._others.get(number)

    def windows_of(self, communicator: _core.Communicator, session: StoreSession | None = None) -> GroupWindows | None:
        """Return the windows of a communicator, whoever made it; None if its ranks cannot compare anything."""
        return self._windows_of(communicator.id) or self._others.add(communicator, session)

    @staticmethod
    def _report_stall(subject: tuple[GroupWindows, _core.Communicator]) -> None:
        _, communicator = subject
        communicator.log_waiting()
        stuck.tell()


class ScopeEnd:
    """Called when a scope ends and there is something to do: something new was touched, or it failed."""

    def __init__(
        self, memory: SymmetricMemory, native: _core.PoolScope, windows: Sequence[GroupWindows], device: int
    ) -> None:
        self._memory = memory
        self._native = native
        self._windows = windows
        self._device = device
        self._refusals = _core.last_refusal().count

    def __call__(self, touched: list[int] | None, error: BaseException | None) -> None:
        """Register the segments that were touched; or, after an error, tell the other ranks, and explain it.

        A forked child that leaves a scope of its parent does nothing: it must not speak for its parent. Nor does an
        interpreter that ends, and closes a generator which is in a scope.
        """
        if _core.abandoned() or sys.is_finalizing():
            return
        if error is not None:
            with contextlib.suppress(RuntimeError):  # what matters is the error that the program gets
                self._decline(error)
            refusal = _core.last_refusal()
            if type(error) is torch.OutOfMemoryError and refusal.count != self._refusals and refusal.limit:
                self._refusals = refusal.count
                raise self._memory.limit_error() from error
            if type(error) is torch.OutOfMemoryError and not _core.capturing(self._device):
                torch.cuda.empty_cache()  # what torch does before it gives up; before 2.13 not inside a scope
                explain_out_of_memory(error, self._memory.open_scopes())
            return
        assert touched is not None
        if self._memory.defers(self._device):
            self._memory.push("window.defer", segments=len(touched))
            for found in self._windows:
                found.deferred.extend(segment for segment in touched if segment not in found.deferred)
            return
        if all(found.refused is not None for found in self._windows):
            return
        self._find_communicators()
        try:
            self._memory.register(self._windows, touched, self._ends)
        finally:  # which may have made them; whatever became of it, all ranks go on alike
            self._find_communicators()

    def _find_communicators(self) -> None:
        self._native.set_communicators([found.communicator() for found in self._windows])

    def _decline(self, error: BaseException) -> None:
        """Spare the others the wait for this rank, which does not come to the end of this scope."""
        device = self._device
        free, total = torch.cuda.mem_get_info(device) if isinstance(error, torch.OutOfMemoryError) else (0, 0)
        room = f"; {in_bytes(free)} of {in_bytes(total)} are free on its device {device}" if total else ""
        # Of an error of ours without its advice, which is for this rank.
        text = error.text if isinstance(error, RegistrationError) else str(error)
        why = f"{type(error).__name__}: {(text.splitlines() or ['no message'])[0]}{room}"
        for found in in_order(self._windows):
            found.decline(why, self._ends(found))

    def _ends(self, found: GroupWindows) -> int:
        ends: int = self._native.ends(self._windows.index(found))
        return ends


def _label(found: GroupWindows) -> str:
    return f"group {found.names.group}" if found.is_of_torch else f"communicator {found.facts.name}"

"""The symmetric memory of this process: made at the first use, and switched on and off with the service.

Imports torch only when the memory is made.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracehook.hook.extension import Extension, Host
from tracehook.hook.service import extend
from tracehook.log.stderr import warn
from tracehook.symmetric_memory.scope import left_to_python

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tracehook.agreement.store_session import StoreSession, StoreSessions
    from tracehook.agreement.watchdog import Listener
    from tracehook.nccl.effect import Threshold
    from tracehook.settings import Settings
    from tracehook.symmetric_memory.memory import SymmetricMemory
    from tracehook.symmetric_memory.pool_scope import Scope
    from tracehook.symmetric_memory.windows import GroupWindows


@left_to_python
def _make_and_ask() -> bool:
    """Make the memory, and ask about the capture; False if there cannot be memory: without a driver torch raises."""
    return memory() is not None and Switch.capturing()


class Switch:
    """What follows the service's state."""

    host: Host | None = None
    memory: SymmetricMemory | None = None
    sessions: StoreSessions | None = None
    members: Any = None  # torch.distributed's GroupMember, whose WORLD is the default group
    # Whether the current stream is captured into a CUDA graph; once there is memory, torch's own function.
    capturing: Callable[[], bool] = _make_and_ask
    unavailable: tuple[str, str] | None = None  # why this process has no symmetric memory (code, text); warned of once


scopes: dict[Any, Scope] = {}
scopes_of_others: dict[Any, tuple[Scope, GroupWindows]] = {}  # of communicators that torch did not make
ordinary_types: set[type] = set()  # torch's own types of tensors that hold what they are; torch may not be imported yet
holders: dict[int, tuple[weakref.ref[Any], Any]] = {}  # by id of the group: what tells whether it has a window
_making = threading.Lock()  # one SymmetricMemory for each process; taken with none of ours held
_beginning = threading.Lock()  # and one of its sessions; for a moment


def memory() -> SymmetricMemory | None:
    """Return the memory of this process; None if tracehook is not enabled, or there cannot be one."""
    if Switch.memory is None and Switch.host is not None:
        make(Switch.host)
    return Switch.memory if Switch.host is not None else None


def existing() -> SymmetricMemory | None:
    """Return the memory, also if tracehook is not enabled any more: what has windows can still be looked after."""
    return Switch.memory if Switch.memory is not None else memory()


def make(host: Host) -> None:
    """Make this process's symmetric memory; one line on stderr if there cannot be one.

    Brings CUDA up: who opens a scope is about to use it.
    """
    import torch
    from torch.distributed.distributed_c10d import GroupMember

    if torch.cuda.is_available():
        torch.cuda.init()  # before any lock of ours: torch takes one under which it calls the service
    with _making:
        if Switch.memory is None and Switch.unavailable is None:
            Switch.unavailable = host.open_bank()
            if Switch.unavailable is None:
                from tracehook.symmetric_memory.memory import SymmetricMemory

                # A builtin, because torch.compile compiles a function of Python that a scope calls.
                Switch.capturing = torch._C._cuda_isCurrentStreamCapturing
                Switch.memory = SymmetricMemory(host.settings, host.push, _drop_holder, _sessions())
            else:
                warn(f"no symmetric memory, scopes do nothing: {Switch.unavailable[1]}")
    Switch.members = GroupMember


def _drop_holder(group: ProcessGroup | None) -> None:
    """The group has another communicator now."""
    holders.pop(id(group), None)


def _sessions() -> StoreSessions:
    """Return those of this process: the program asks for them at its first scope, and the log's thread at a birth."""
    from tracehook.agreement.store_session import StoreSessions
    from tracehook.agreement.watchdog import STUCK
    from tracehook.symmetric_memory import registration_parity, stuck

    host = Switch.host
    patience = host.settings.timeout if host is not None else 60.0

    def listeners() -> Mapping[str, Listener]:
        parity = registration_parity.Registrations(lambda: host.switched if host is not None else 0.0)
        return {registration_parity.CHANNEL: parity, STUCK: stuck.Stuck()}

    with _beginning:
        if Switch.sessions is None:
            Switch.sessions = StoreSessions(_know, listeners, patience)
        return Switch.sessions


def _know(key: str, session: StoreSession) -> None:
    """Find the communicator of which another rank asks: from now on this process answers for it."""
    from tracehook import _core

    pointers = [row["pointer"] for row in _core.communicators() if f"{row['key']:016x}" == key]
    found = _core.find_communicator(pointers[0]) if pointers else None
    if found is not None and (mine := memory()) is not None:
        mine.windows_of(found, session)


class _Extension(Extension):
    """How the service, which must not import this room, tells it what happens."""

    def enabled(self, host: Host) -> None:
        """Let scopes take effect."""
        Switch.host = host

    def disabled(self) -> None:
        """Make scopes do nothing. What has windows keeps them."""
        Switch.host = None
        scopes.clear()
        scopes_of_others.clear()

    def paying_calls(self, config: Settings) -> Mapping[str, Threshold]:
        """Ask the policies."""
        from tracehook.symmetric_memory.pool_choice import paying_calls

        return paying_calls(config.policy)

    def communicator_born(self) -> None:
        """Hear what other ranks say of the communicator, also if this rank never enters a scope."""
        if Switch.host is not None:
            _sessions().listen()

    def abandon(self) -> None:
        """In a forked child: everything here belongs to the parent."""
        global _making, _beginning
        self.disabled()
        _making, _beginning = threading.Lock(), threading.Lock()
        Switch.memory = Switch.sessions = Switch.unavailable = None
        holders.clear()

    def status(self) -> dict[str, Any]:
        """Return ``pools`` and ``windows`` of :func:`tracehook.status`; empty before the first scope."""
        return Switch.memory.status() if Switch.memory is not None else {}


extend(_Extension())

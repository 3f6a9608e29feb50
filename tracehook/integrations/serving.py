"""What the contexts of servers have in common: a scope on their communicator, and what a capture left for later."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from tracehook import _core
from tracehook.log.stderr import say_once
from tracehook.symmetric_memory import state
from tracehook.symmetric_memory.pool_scope import Scope
from tracehook.symmetric_memory.public import symmetric, sync
from tracehook.symmetric_memory.scope import NO_SCOPE, NoScope


def scope_of(communicator: Any, graph: bool = True) -> Scope | NoScope | None:
    """Return a scope for a server's communicator.

    It is one of the memory of captured graphs, also outside of a capture: servers run once, and then capture the same.
    With `graph=False` it is not: for memory that the server keeps.

    Returns:
        None if tracehook has no memory for it: the server's own context has to serve. One line has said why.

    """
    try:
        found = symmetric(communicator=communicator, graph=graph)
    except (RuntimeError, TypeError, ValueError) as problem:
        say_once(f"{str(problem).removeprefix('tracehook: ')}; the server makes its symmetric memory itself")
        return None
    return found if found is not NO_SCOPE else None


def catch_up(communicator: Any) -> None:
    """Register what was touched in a capture or a group of NCCL calls; nothing is sent in one, or if there is nothing.

    Raises:
        RegistrationError: see :func:`tracehook.sync`.

    """
    memory = state.memory()
    if memory is None:
        return
    (windows,) = memory.chosen(None, communicator)
    if windows.deferred and not memory.defers(windows.facts.device):
        sync(communicator=communicator)


def is_in_pools(address: int) -> bool:
    """Return whether the address lies in a segment of tracehook's pools."""
    return bool(_core.pool_segment_at(address))


class ServerContext:
    """A scope of tracehook on a server's communicator; the server's own context, if tracehook has no memory for it.

    Entered on any thread, also inside of others. All ranks of the communicator leave it at the same point.
    """

    def __init__(self, communicator: Any, own: Callable[[], Any]) -> None:
        scope = scope_of(communicator)
        self._communicator = communicator
        self.is_of_tracehook = scope is not None
        self._scope: Any = scope if scope is not None else own()

    def __enter__(self) -> Any:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)
        if self.is_of_tracehook and error is None:
            catch_up(self._communicator)

"""What a ``with`` statement enters: a scope of symmetric memory, or one that does nothing. Imports no torch."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

P = ParamSpec("P")
R = TypeVar("R")


def left_to_python(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile out of `function` and of all that it calls, if the program loaded the compiler.

    Code that runs between two compiled graphs is compiled too, where it is not told to leave it.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        dynamo = sys.modules.get("torch._dynamo")
        uncompiled = function if dynamo is None else dynamo.disable(function)
        return uncompiled(*args, **kwargs)

    call.__dict__["_torchdynamo_disable"] = True  # a trace ends before it
    return call


class NoScope:
    """Does nothing: shared by all scopes that are disabled."""

    __slots__ = ()
    # Builtins that take what a `with` statement passes: half the price of methods written in Python.
    __enter__: Any = bool
    __exit__: Any = "".format

    def __repr__(self) -> str:
        return "<scope of tracehook.symmetric that does nothing>"

    def give_back_cache(self) -> bool:
        """Return False: torch has done so by itself."""
        return False


NO_SCOPE = NoScope()


class Scope:
    """What :func:`tracehook.symmetric` returns. One object serves a set of groups again and again, on any thread."""

    __slots__ = ("_begin", "_end", "_finish", "_graph", "_pause", "refs")

    def __init__(
        self, begin: Any, end: Any, pause: Any, finish: Any, graph: bool, groups: Sequence[ProcessGroup]
    ) -> None:
        self._begin = begin
        self._end = end
        self._pause = pause
        self._finish = left_to_python(finish)
        self._graph = graph
        self.refs = tuple(weakref.ref(group) for group in groups)

    def __repr__(self) -> str:
        names = [group.group_name for ref in self.refs if (group := ref()) is not None]
        return f"<scope of tracehook.symmetric: {', '.join(f'group {name}' for name in names) or 'no group of torch'}>"

    def belongs_to(self, groups: Sequence[ProcessGroup]) -> bool:
        """Whether it was made for these very groups: ids are reused, objects are not."""
        return all(ref() is group for ref, group in zip(self.refs, groups, strict=True))

    def give_back_cache(self) -> bool:
        """Have torch give its cache back to the device, as it cannot inside a scope. For other ranks the scope goes on.

        Call it inside the scope, where nothing was allocated yet. Return whether it was tried.
        """
        import torch

        if torch.cuda.is_current_stream_capturing():
            return False
        self._pause()
        try:
            torch.cuda.empty_cache()
        finally:
            self._begin(self._graph)
        return True

    def __enter__(self) -> None:
        self._begin(self._graph)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            touched = self._end()
        except RuntimeError as problem:  # out of order: the other ranks must not wait for its registrations
            self._finish(None, error or problem)
            raise
        if touched is not None or error is not None:
            self._finish(touched, error)


# A trace ends before these, too. Without a wrapper, which would double their price.
for _method in (Scope.__enter__, Scope.__exit__):
    _method.__dict__["_torchdynamo_disable"] = True

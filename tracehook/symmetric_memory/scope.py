"""The scope that does nothing, which a `with` statement may enter, too. Imports no torch and no native part."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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

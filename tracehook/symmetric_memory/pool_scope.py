"""A scope of symmetric memory: what :func:`tracehook.symmetric` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tracehook._core import Entered
from tracehook.symmetric_memory.scope import left_to_python

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Scope(Entered):
    """One object serves a set of groups again and again, on any thread. Its native part is entered and left."""

    __slots__ = ("_pause", "refs")

    def __init__(
        self,
        begin: Callable[[bool], object],
        end: Callable[[], list[int] | None],
        pause: Callable[[], object],
        finish: Callable[[list[int] | None, BaseException | None], None],
        graph: bool,
        groups: Sequence[ProcessGroup],
    ) -> None:
        super().__init__(begin, end, left_to_python(finish), graph)
        self._pause = pause
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

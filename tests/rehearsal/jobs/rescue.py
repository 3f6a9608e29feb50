"""Ends the wait of a rank for one that has left: inside NCCL no exception reaches it, and only an abort ends that.

An abort does not end everything: on a real device a symmetric kernel that waits for a rank goes on.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from tracehook.hook.groups import cloned_store

Watched = tuple[str, Sequence["weakref.ref[dist.ProcessGroup]"], float]
LOOK = 0.05  # seconds between two looks at the store
ABORT = 10.0  # seconds that an abort may take, and then the device for what it was given


class Rescue:
    """A thread, with a connection of its own, that aborts the groups of this rank when a key says that a rank left."""

    def __init__(self, store: dist.Store) -> None:
        self.has_aborted = False
        self._aborts = False
        self._store = cloned_store(store)
        self._changed = threading.Condition()
        self._watched: Watched | None = None  # by weak references, so that a group ends when its seed does
        threading.Thread(target=self._run, name="rescue", daemon=True).start()

    @contextlib.contextmanager
    def watching(self, key: str, groups: Sequence[dist.ProcessGroup], grace: float) -> Iterator[None]:
        """Abort these groups if the key is set and the body has not ended `grace` seconds later."""
        self.has_aborted = False
        with self._changed:
            self._watched = (key, [weakref.ref(group) for group in groups], grace)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._watched = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._aborts, ABORT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched is not None)
                watched = self._watched
            if watched is not None:
                self._guard(watched)

    def _guard(self, watched: Watched) -> None:
        key, groups, grace = watched

        def is_over() -> bool:
            return self._watched is not watched

        while not self._store.check([key]):
            with self._changed:
                if self._changed.wait_for(is_over, LOOK):
                    return
        with self._changed:
            if self._changed.wait_for(is_over, grace):
                return
            self.has_aborted = self._aborts = True
            self._watched = None
        for one in groups:
            if (group := one()) is not None:
                group.abort()
        with self._changed:
            self._aborts = False
            self._changed.notify_all()


def ends(call: Callable[[], object], patience: float = ABORT) -> bool:
    """Make a call on a thread of its own, for this thread's device; tell if it returned within `patience` seconds."""
    device = torch.cuda.current_device()
    problems: list[BaseException] = []

    def make() -> None:
        try:
            torch.cuda.set_device(device)
            call()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(patience)
    if problems:
        raise problems[0]
    return not thread.is_alive()

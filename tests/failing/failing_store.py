"""Connections to the store whose calls are counted, and fail when that was planned."""

import threading
from collections import Counter
from typing import Any

import torch.distributed as dist

from tracehook.agreement import store_session, store_worker, watchdog
from tracehook.hook import groups

CALLS = ("add", "check", "compare_set", "delete_key", "get", "multi_get", "set", "wait")
ALWAYS = 0
counts: Counter[str] = Counter()
_planned: tuple[str, int] | None = None
_counting = threading.Lock()


def plan(name: str | None, ordinal: int = ALWAYS) -> None:
    """Let the call of that number fail from now on: "rounds.set", or "watch.set" of the watchdog; ALWAYS: every one."""
    global _planned
    with _counting:
        _planned = (name, ordinal) if name else None
        counts.clear()


def _count(name: str) -> None:
    kind = "watch" if "watch" in threading.current_thread().name else "rounds"
    with _counting:
        counts[f"{kind}.{name}"] += 1
        fails = _planned in ((f"{kind}.{name}", ALWAYS), (f"{kind}.{name}", counts[f"{kind}.{name}"]))
    if fails:
        raise (dist.DistStoreError if name == "wait" else dist.DistNetworkError)(
            f"a failure of {name} that was planned"
        )


class FailingStore:
    """Stands for one connection."""

    def __init__(self, store: Any) -> None:
        self._inner = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def call(*given: Any) -> Any:
            _count(name)
            return found(*given)

        return call


def install() -> None:
    """Let all of tracehook's connections be such ones."""

    def cloned(store: Any, patience: float = 0.0) -> Any:
        inner = store._inner if isinstance(store, FailingStore) else store
        return FailingStore(groups.cloned_store(inner, patience))

    below = groups.below
    for module in (store_session, store_worker, watchdog):
        module.cloned_store = cloned  # type: ignore[attr-defined]
    store_session.below = lambda store: FailingStore(below(store))  # type: ignore[attr-defined]

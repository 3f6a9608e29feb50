"""All ranks of a run of the tuner, who tell each other through the store: not through NCCL, which is what they time."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from tracehook.hook.groups import job_store
from tracehook.hook.job import attempt

_GRACE_SECONDS = 3.0
_runs = itertools.count()  # of this process, which all ranks make alike: a store may outlive a run, and its keys too


class CrewError(RuntimeError):
    """Ranks cannot go on together. The text names the rank that is the reason, and what it did."""


class Crew:
    """The ranks of the default group. One thread uses it; all ranks call :meth:`tell` in the same order."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds that a rank may stay behind the others."""
        store = job_store()
        if store is None:
            raise CrewError("the ranks have no store: call torch.distributed.init_process_group first")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.doing = "beginning"
        self._store = dist.PrefixStore(f"tracehook/tune/{attempt()}{next(_runs)}", store)
        self._timeout = timeout
        self._told = 0

    def tell(self, mine: Any) -> list[Any]:
        """Give all ranks what this one has (plain values), and return what each rank has.

        Raises:
            CrewError: a rank failed, or did not come in time.

        """
        self._told += 1
        keys = [f"{self._told}/{rank}" for rank in range(self.ranks)]
        with self._store_errors():
            self._store.set(keys[self.rank], json.dumps(mine))
        began = time.monotonic()
        while True:
            try:
                self._store.wait(keys, timedelta(seconds=1))
                break
            except (dist.DistStoreError, RuntimeError):
                self.look(time.monotonic() - began)
        with self._store_errors():
            found = [json.loads(self._store.get(key)) for key in keys]
            if self._told > 2:  # nobody reads those any more
                self._store.delete_key(f"{self._told - 2}/{self.rank}")
        return found

    def agree(self, failure: str) -> None:
        """Tell whether this rank failed (`failure` says how); go on if none did.

        Raises:
            CrewError: on all ranks, with the failure of each rank that has one.

        """
        failures = self.tell(failure)
        told = [f"rank {rank}: {text}" for rank, text in enumerate(failures) if text]
        if told:
            raise CrewError(f"{self.doing}: {'; '.join(dict.fromkeys(told))}")

    def fail(self, text: str) -> None:
        """Tell the others, who may wait on their devices, that this rank cannot go on."""
        with contextlib.suppress(dist.DistError, RuntimeError):
            self._store.set(f"failed/{self.rank}", f"{self.doing}: {text}")

    def look(self, waited: float) -> None:
        """Look at the others while this rank has waited for so many seconds.

        Raises:
            CrewError: a rank said that it failed, or ranks are missing and the time is over.

        """
        with self._store_errors():
            for rank in range(self.ranks):
                if self._store.check([f"failed/{rank}"]):
                    raise CrewError(f"rank {rank} failed in {self._store.get(f'failed/{rank}').decode()}")
            if waited > self._timeout:
                self._name_missing(waited)

    def _name_missing(self, waited: float) -> NoReturn:
        """Who waits says so. Whoever does not say so in a while is the one that is missing."""
        self._store.set(f"waits/{self.rank}", self.doing)
        time.sleep(_GRACE_SECONDS)
        missing = [str(rank) for rank in range(self.ranks) if not self._store.check([f"waits/{rank}"])]
        who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}" if missing else "no rank"
        end = "came no further" if missing else "is missing, and yet none goes on: NCCL hangs"
        raise CrewError(
            f"{self.doing}: after {waited:.0f} s, {who} {end}: look at what that process does, and at dmesg"
        )

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except CrewError:
            raise
        except (dist.DistError, RuntimeError, OSError) as problem:
            text = " ".join(str(problem).split())[:200]
            raise CrewError(
                f"{self.doing}: the ranks' store is gone, and with it the rank or launcher that held it ({text})"
            ) from None


Progress = Callable[[str, float], None]

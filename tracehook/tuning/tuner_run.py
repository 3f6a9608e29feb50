"""The ranks of a run of the tuner: they agree through the store, not through NCCL, which is what they time."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from tracehook.agreement.agreement import Agreement
from tracehook.errors import RegistrationError
from tracehook.hook.groups import cloned_store, job_store
from tracehook.hook.job import attempt

_GRACE = 3.0  # seconds in which the ranks that wait say so, at the end of their time
_runs = itertools.count()  # of this process, which all ranks make alike: a store may outlive a run, and its keys too


class TunerRun:
    """The ranks of the default group. One thread uses it; all ranks call the methods in the same order.

    Each raises :class:`RegistrationError` if a rank failed, or is missing after `timeout` seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.doing = "beginning"
        self._timeout = timeout
        store, channel = job_store(), f"tune/{attempt()}{next(_runs)}"
        if store is None:
            raise RegistrationError("the ranks have no store", advice="Call torch.distributed.init_process_group first")
        own = cloned_store(store) if self.ranks > 1 else None
        self._agreement = Agreement(own, channel, self.rank, self.ranks, "tracehook tune")

    def tell(self, mine: Any) -> list[Any]:
        """Give all ranks what this one has (plain values), and return what each rank has."""
        told = self._agreement.exchange(self.doing, [json.dumps(mine)], self._timeout)
        return [json.loads(text) for (text,) in told]

    def agree(self, failure: str) -> None:
        """Tell whether this rank failed (`failure` says how); go on if none did."""
        self._agreement.confirm(self.doing, failure, self._timeout)

    def fail(self, text: str) -> None:
        """Tell the others, who may wait on their devices, that this rank cannot go on."""
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it the rank or launcher that held it
            self._agreement.decline("", f"{self.doing}: {text}", self._timeout, waits=True)

    def look(self, waited: float) -> None:
        """Look at the others while this rank has waited for its device for so many seconds."""
        if self._agreement.is_declined():
            self.agree("")
        if waited > self._timeout:
            self._agreement.confirm(f"{self.doing}, on the device", "", _GRACE)
            raise RegistrationError(
                f"{self.doing}: after {waited:.0f} s no rank is missing, and yet none goes on: NCCL hangs",
                advice="Look at what the processes do, and at dmesg",
            )


Progress = Callable[[str, float], None]

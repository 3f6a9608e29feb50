"""The built-in policy ``measured``."""

from __future__ import annotations

import os
import threading
from functools import cached_property

from tracehook.log.stderr import warn
from tracehook.log.text import many
from tracehook.policies.base import Answer, Request, Threshold
from tracehook.settings import from_environment
from tracehook.tuning.machine import hosts_of, this_machine
from tracehook.tuning.table import Point, Row, Table, TableError, load
from tracehook.tuning.thresholds import threshold

_MAKE = "make one here with `tracehook tune`, and name it in SYMM_REGISTER_TUNED"


class Measured:
    """Plain memory where it is as fast: asks the table of SYMM_REGISTER_TUNED.

    Where the table says that symmetric memory is faster, the next policy says from which pool; so it does where the
    table does not know: no operation or size in the request, a size outside of the range, another size of the group.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # protects what follows
        self._said: set[str] = set()
        self._tables: list[Table | None] = []  # one, when the file was read

    def __call__(self, request: Request) -> Answer | None:
        """Return NONE where plain memory is as fast, or abstain."""
        point = self._find(request)
        if point is None or self._table is None or point.prefers_symmetric(self._table.margin):
            return None
        return Answer.NONE

    def fingerprint(self) -> str:
        """See :class:`Policy`."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        if self._table is None:
            return "no tuning table"
        if self._differences:
            return "a tuning table of another machine"
        return f"tuning table {self._table.digest}, {os.environ.get('LOCAL_WORLD_SIZE', 'unknown')} ranks a host"

    def pays(self, operation: str) -> Threshold | None:
        """See :class:`Policy`. Nothing is kept: CUDA is just coming up, and the program may choose a device later."""
        if self._table is None or not self._table.registered:
            return None
        if differences := self._differences_on_current_device():
            self._say_elsewhere(differences)
            return None
        world = os.environ.get("WORLD_SIZE", "")
        size = (int(world), hosts_of(range(int(world)))) if world.isdigit() else (0, 0)
        known = sorted({(kind.ranks, kind.hosts) for kind in self._table.registered})
        if size[1] == 1 and size not in known:
            made = " or ".join(_group(*each) for each in known)
            self._say(f"the tuning table was made for {made}, this is a job of {_group(*size)}: {_MAKE}")
            return None
        return threshold(self._table, operation)

    @property
    def _table(self) -> Table | None:
        with self._lock:  # all threads answer from what one of them read
            if not self._tables:
                self._tables.append(self._read())
            return self._tables[0]

    def _read(self) -> Table | None:
        path = from_environment()[0].tuned
        if path is None:
            self._say(f"SYMM_REGISTER_TUNED names no tuning table: {_MAKE}")
            return None
        try:
            return load(path)
        except TableError as problem:
            self._say(str(problem))
            return None

    @cached_property
    def _differences(self) -> list[str]:
        return self._differences_on_current_device()

    def _differences_on_current_device(self) -> list[str]:
        import torch

        assert self._table is not None
        return this_machine(torch.cuda.current_device()).differences(self._table.machine)

    def _find(self, request: Request) -> Point | None:
        if self._table is None or request.operation is None or request.nbytes is None or len(request.ranks) != 1:
            return None
        if self._differences:
            self._say_elsewhere(self._differences)
            return None
        size = (request.ranks[0], hosts_of(request.members[0] if request.members else ()))
        if size not in self._table.sizes():
            known = " or ".join(_group(*each) for each in self._table.sizes())
            self._say(f"the tuning table was made for {known}, this is a group of {_group(*size)}: {_MAKE}")
            return None
        dtype = self._table.dtype(request.operation, request.dtype)
        if dtype is None:
            return None
        return self._table.find(Row(request.operation, dtype, request.graph, *size), request.nbytes)

    def _say_elsewhere(self, differences: list[str]) -> None:
        self._say(f"the tuning table was made elsewhere ({'; '.join(differences)}): {_MAKE}")

    def _say(self, text: str) -> None:
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        warn(f"policy 'measured' answers nothing: {text}; the next policy answers")


def _group(ranks: int, hosts: int) -> str:
    return f"{many(ranks, 'rank')} on {many(hosts, 'host')}"


choose = Measured()

"""The hosts of a job that runs, those first that somebody should look at."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from tracehook.audit.live_process import Process, State


class Concern(IntEnum):
    """Why somebody should look at a process, the worst first."""

    STUCK = 0
    SILENT = 1
    NO_END = 2
    WARNED = 3  # warnings, problems, calls that NCCL refused
    NONE = 4


_OF_STATE = {State.STUCK: Concern.STUCK, State.SILENT: Concern.SILENT, State.NO_END: Concern.NO_END}
_FROM_WORST = (State.STUCK, State.SILENT, State.NO_END, State.QUIET, State.RUNNING, State.ENDED)


@dataclass
class WatchedHost:
    """The processes of one host."""

    name: str
    processes: list[Process] = field(default_factory=list)
    states: Counter[State] = field(default_factory=Counter)
    longest: dict[State, float] = field(default_factory=dict)  # seconds since when, of the first of each state
    troubled: list[tuple[Concern, float, Process]] = field(default_factory=list)  # the worst first, with seconds

    def add(self, process: Process, now: float) -> None:
        """Take a process into account."""
        state, seconds = process.state(now)
        self.processes.append(process)
        self.states[state] += 1
        self.longest[state] = max(seconds, self.longest.get(state, 0.0))
        concern = _OF_STATE.get(state, Concern.WARNED if process.alerts else Concern.NONE)
        if concern != Concern.NONE:
            self.troubled.append((concern, seconds, process))

    @property
    def worst(self) -> State:
        """The worst state of its processes."""
        return next(state for state in _FROM_WORST if self.states[state])

    @property
    def concern(self) -> Concern:
        """That of its worst process."""
        return self.troubled[0][0] if self.troubled else Concern.NONE


def hosts_of(processes: Iterable[Process], now: float) -> list[WatchedHost]:
    """Return the hosts of these processes, those in trouble first, of these the one whose trouble is worst."""
    hosts: dict[str, WatchedHost] = {}
    for process in processes:
        hosts.setdefault(process.host, WatchedHost(process.host)).add(process, now)
    for host in hosts.values():
        host.troubled.sort(key=lambda each: (each[0], -int(each[1]), by_rank(each[2])))
    return sorted(hosts.values(), key=_place)


def by_rank(process: Process) -> tuple[bool, int, int]:
    """Return what processes are sorted by."""
    summary = process.summary
    return summary.rank is None, summary.rank or 0, summary.pid


def _place(host: WatchedHost) -> tuple[object, ...]:
    concern = host.concern
    alike = [seconds for each, seconds, _ in host.troubled if each == concern]
    # Numbers in names count as such. Who is well stands where it stood at the last look.
    name = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", host.name)]
    return concern, -len(alike), -int(max(alike, default=0.0)) if concern != Concern.WARNED else 0, name

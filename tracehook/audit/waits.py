"""Who waits in which call, for whom: found by going through the calls of all processes as their devices would.

A device takes the calls of its process in their order. It comes past a collective when all ranks of the communicator
have come to it. It comes past a send when the other rank has a receive for it, however far that rank has come: those
of one group go together. Calls that are forgotten are taken for done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracehook.audit.called import Caller, Callers, Member, Step

Comparable = Mapping[str, Mapping[int, Member]]  # by communicator and rank in it
Devices = Mapping[int, "_Device"]  # by the number of the process


class Wait(NamedTuple):
    """Who waits in which call, for whom."""

    process: Caller
    comm: str
    step: Step
    number: int  # of the collective, or of the transfer of this kind with that peer; from 0
    missing: tuple[Caller, ...]
    made: int  # to how many such calls the first missing one came


class _Device:
    """How far one process has come."""

    def __init__(self, process: Caller) -> None:
        self.process = process
        self.steps: Sequence[Step] = process.in_order
        self.at = 0  # place of the next call in `steps`
        self.has_arrived = False  # and was counted there
        self.places = {
            (step.comm, step.call.number): place for place, step in enumerate(self.steps) if not step.is_transfer
        }

    @property
    def next(self) -> Step | None:
        """The call to which it has come."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    def go_on(self) -> None:
        """Come past the call to which it has come."""
        self.at += 1
        self.has_arrived = False

    def has_forgotten(self, comm: str, number: int) -> bool:
        """Whether it made that collective too long ago to remember it."""
        return (comm, number) not in self.places and number < self.process.parts[comm].collectives

    def has_come_to(self, comm: str, number: int) -> bool:
        """Whether it has come to that collective."""
        place = self.places.get((comm, number))
        return self.has_forgotten(comm, number) if place is None else place <= self.at

    def came_to(self, comm: str, number: int) -> int:
        """Return to how many collectives it has come, of those before that one."""
        ahead = sum(place > self.at for (other, _), place in self.places.items() if other == comm)
        return min(number, self.process.parts[comm].collectives - ahead)


class _Arrivals:
    """How many ranks have come to each collective. So a rank that waits need not ask all others again."""

    def __init__(self, comparable: Comparable, devices: Devices) -> None:
        self._comparable = comparable
        self._devices = devices
        self._missing: dict[tuple[str, int], int] = {}

    def is_complete(self, device: _Device, step: Step) -> bool:
        """Count a device at the collective to which it has come; tell whether all ranks have come to it."""
        comm, number = step.comm, step.call.number
        if comm not in self._comparable:
            return True
        if (comm, number) not in self._missing:
            members = self._comparable[comm].values()
            forgotten = sum(self._devices[each.process.number].has_forgotten(comm, number) for each in members)
            self._missing[comm, number] = len(members) - forgotten
        if not device.has_arrived:
            device.has_arrived = True
            self._missing[comm, number] -= 1
        return self._missing[comm, number] <= 0


def waits(job: Callers) -> list[Wait]:
    """Return for each process that waits the call in which it does."""
    waiting = [process for process in job.processes if not process.ended or process.how == "exception"]
    if not waiting:
        return []
    devices = {process.number: _Device(process) for process in job.processes}
    comparable = dict(job.comparable())
    arrivals = _Arrivals(comparable, devices)
    moves = True
    while moves:
        moves = False
        for device in devices.values():
            while (step := device.next) is not None:
                if step.is_transfer:
                    waits_here = bool(_missing(device, step, comparable, devices))
                else:
                    waits_here = not arrivals.is_complete(device, step)
                if waits_here:
                    break
                device.go_on()
                moves = True
    found = []
    alike: dict[tuple[str, int], tuple[Caller, ...]] = {}  # who has not come to a collective is so for all who wait
    for process in waiting:
        device = devices[process.number]
        if (step := device.next) is None:
            continue
        missing = None if step.is_transfer else alike.get((step.comm, step.call.number))
        if missing is None:
            missing = tuple(member.process for member in _missing(device, step, comparable, devices))
        if not step.is_transfer:
            alike[step.comm, step.call.number] = missing
        found.append(_wait(device, step, missing, devices))
    return found


def _missing(device: _Device, step: Step, comparable: Comparable, devices: Devices) -> list[Member]:
    """Return who has not come to a call to which a device has come."""
    process, members = device.process, comparable.get(step.comm, {})
    if not step.is_transfer:
        number = step.call.number
        others = (member for member in members.values() if member.process is not process)
        return [member for member in others if not devices[member.process.number].has_come_to(step.comm, number)]
    number, mine = process.transfers_before(step), process.parts[step.comm].rank
    other = members.get(step.call.root)
    if other is None or other.process is process or other.calls.is_crowded:
        return []
    return [] if _answered(devices[other.process.number], step, mine, number) else [other]


def _answered(other: _Device, step: Step, rank: int, number: int) -> bool:
    """Whether another device has, or will have, the other half of a transfer."""
    made = _answers(other.process, step, rank)
    if made <= number:
        return False
    stuck = other.next
    orders = other.process.transfer_orders(step.comm, rank, _answer(step))
    place = number - (made - len(orders))
    # It waits in a collective before: whether that ends by itself shows when all others have gone as far as they can.
    return stuck is None or stuck.is_transfer or place < 0 or orders[place] < stuck.call.order


def _answer(step: Step) -> str:
    return "recv" if step.call.operation == "send" else "send"


def _answers(process: Caller, step: Step, rank: int) -> int:
    """Return how many of the other halves of transfers like this one a process has called."""
    peers = [peer for peer in process.parts[step.comm].peers if peer.rank == rank]
    return sum(peer.received if _answer(step) == "recv" else peer.sent for peer in peers)


def _wait(device: _Device, step: Step, missing: tuple[Caller, ...], devices: Devices) -> Wait:
    process = device.process
    first = devices[missing[0].number]
    if step.is_transfer:
        number = process.transfers_before(step)
        made = min(number, _answers(first.process, step, process.parts[step.comm].rank))
    else:
        number = step.call.number
        made = first.came_to(step.comm, number)
    return Wait(process, step.comm, step, number, missing, made)

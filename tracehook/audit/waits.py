"""Who waits in which call, for whom: found by going through the calls of all processes as their devices would.

A device takes the calls of its process in their order; those of one ncclGroupStart together. It comes past a
collective when all ranks of the communicator have come to it, and past a send when the other rank has come to the
receive. So a call that stands behind one in which its rank waits was made, but nobody has come to it. Calls that are
forgotten are taken for done, but the first that some rank did not make: there the others stand.

Hosts wait, too: see :mod:`host_waits`.

Of peers, a stream waits for a signal until the other rank's stream comes to it, and with a signal until the other rank
has waited for the one before. What order the calls on several streams take is not known. So each stream goes by itself,
and so do the calls into NCCL, which have streams of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tracehook.audit.called import Caller, Callers, Member, Step, Wait, by_process
from tracehook.audit.host_waits import in_agreements, in_functions, making, on_hosts
from tracehook.log.calls import FORGOTTEN, READ, RECV, SEND, Call, Calls

Comparable = Mapping[str, Mapping[int, Member]]  # by communicator and rank in it
Devices = Mapping[int, "_Device"]  # by the number of the process
_CODES = {"send": SEND, "recv": RECV}
_ANSWER = {"send": "recv", "recv": "send", "signal": "wait", "wait": "signal"}
_SENDING = ("send", "signal")
Transfer = tuple[str, int, int, int]  # communicator, who sends, who receives, and the how manieth of these two
Passed = tuple[str, str, int, int, int]  # what a stream came past, a signal or a wait, as a Transfer


class _Device:
    """How far one process has come: its calls into NCCL, or its signals and waits on one stream."""

    def __init__(self, process: Caller, comparable: Comparable, least: Mapping[str, int], stream: int = 0) -> None:
        self.process = process
        self.numbers = process.transfer_numbers()  # of transfers, by communicator, kind, and number of the call
        forgotten = list(_forgotten(process, comparable, least, self.numbers)) if not stream else []
        self.forgotten = {(step.comm, step.call.number) for step in forgotten if not step.is_transfer}
        steps = [step for step in process.in_order if step.stream == stream and step.call.what != READ]
        if forgotten:
            steps = sorted([*forgotten, *steps], key=lambda step: step.call.order)  # stable: each before its own
        self.units = list(_units(steps))
        self.at = -1
        self.open: list[Step] = []  # of the calls to which it has come, those that are not over

    @property
    def is_last(self) -> bool:
        """Whether it has come to the last call."""
        return self.at == len(self.units) - 1

    def stands_before(self, place: int) -> bool:
        """Whether the device has not come to these calls, for no other rank's sake. Its last calls say so, too."""
        return place < len(self.units) and all(
            step.call.is_ahead for unit in (self.units[place], self.units[-1]) for step in unit
        )

    def has_forgotten(self, comm: str, number: int) -> bool:
        """Whether it made that collective too long ago to remember it."""
        return number < first_of(self.process.parts[comm]) and (comm, number) not in self.forgotten

    def transfer(self, step: Step) -> Transfer:
        """Return what the other half of a transfer has, too."""
        mine, peer = _own_place(self.process, step), step.call.root
        pair = (mine, peer) if step.call.operation in _SENDING else (peer, mine)
        return (step.comm, *pair, self.numbers[step.comm, step.call.operation, step.call.number])

    def passes(self, step: Step) -> Passed:
        """Return what a stream has come past when a semaphore is over."""
        return (step.call.operation, *self.transfer(step))

    def needs(self, step: Step) -> Passed:
        """Return what a stream of the peer has to come past first: a signal, or the wait for the signal before."""
        comm, sender, receiver, number = self.transfer(step)
        return _ANSWER[step.call.operation], comm, sender, receiver, number - (step.call.operation == "signal")


def _own_place(process: Caller, step: Step) -> int:
    """Return what the other half of a transfer has as its peer: of semaphores, the channel is in it."""
    calls = process.parts[step.comm]
    return calls.rank + step.call.root - calls.peer_of(step.call.root)


def _units(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the calls that a device takes together.

    Older logs do not know the groups: there, transfers one after the other count as one. So nobody waits too early.
    """
    unit: list[Step] = []
    for step in steps:
        if unit:
            before = unit[-1]
            same = step.call.group == before.call.group != 0
            unknown = step.call.place == before.call.place == 0 and step.is_transfer and before.is_transfer
            if not same and not unknown:
                yield unit
                unit = []
        unit.append(step)
    if unit:
        yield unit


def first_of(calls: Calls) -> int:
    """Return the number of the first collective that is remembered."""
    return calls.last[0].number if calls.last else calls.collectives


def _forgotten(
    process: Caller, comparable: Comparable, least: Mapping[str, int], numbers: dict[tuple[str, str, int], int]
) -> Iterator[Step]:
    """Yield the first forgotten call of each kind that another rank did not make, and note its number."""
    for comm, calls in process.parts.items():
        members = comparable.get(comm, {})
        if calls.last and least.get(comm, calls.collectives) < first_of(calls):
            number = least[comm]
            yield Step(comm, calls.comm_id, Call(number, FORGOTTEN, 0, -1, calls.last[0].order), False)
        # Of semaphores, the first one that is remembered stands for them.
        for place, (operation, peer, base) in enumerate(() if calls.is_of_peers else _first_transfers(calls)):
            other = members.get(peer)
            if other is None or other.calls.is_crowded or not calls.last_transfers:
                continue
            answers = _answers(other.process, comm, calls.rank, operation)
            if answers < base:
                call = Call(-1 - place, FORGOTTEN | _CODES[operation], 0, peer, calls.last_transfers[0].order)
                numbers[comm, operation, call.number] = answers
                yield Step(comm, calls.comm_id, call, True)


def _first_transfers(calls: Calls) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, the peer, and how many of that kind with that peer are forgotten."""
    for operation in ("send", "recv"):
        kept = Counter(call.root for call in calls.last_transfers if call.operation == operation)
        for peer in calls.peers:
            yield operation, peer.rank, (peer.sent if operation == "send" else peer.received) - kept[peer.rank]


class _Play:
    """All devices go as far as they can."""

    def __init__(self, job: Callers, without: Caller | None = None) -> None:
        """Play. `without`: a process for which nobody waits, as if it did whatever the others want.

        Then the device of a rank that really waits goes on behind that wait, to calls to which it has not come yet.
        """
        self.standing = job.standing if without is not None else None  # whose devices run something else; None: ask all
        self.comparable = {
            comm: {place: each for place, each in members.items() if each.process is not without}
            for comm, members in job.comparable()
        }
        least = {
            comm: min(each.calls.collectives for each in members.values()) for comm, members in self.comparable.items()
        }
        self.devices = {
            process.number: _Device(process, self.comparable, least)
            for process in job.processes
            if process is not without
        }
        self._missing: dict[tuple[str, int], int] = {}  # how many ranks have not come to a collective
        self.there: dict[tuple[str, int], list[tuple[_Device, Step]]] = defaultdict(list)
        self._alike: dict[tuple[str, int], tuple[Caller, ...]] = {}  # who has not come is so for all who wait
        self._halves: dict[Transfer, tuple[_Device, Step]] = {}
        self._passed: set[Passed] = set()
        self._awaited: dict[Passed, tuple[_Device, Step]] = {}
        self.streams = list(self.devices.values())
        for process in job.processes if any(map(job.is_of_peers, self.comparable)) else ():
            others = sorted({step.stream for step in process.in_order} - {0}) if process is not without else ()
            self.streams += [_Device(process, self.comparable, least, stream) for stream in others]
        self._ready = list(self.streams)
        self._run()
        self.given_up: list[tuple[_Device, Step, tuple[Caller, ...]]] = []  # calls in which a program aborted them
        while stuck := [
            (device, step) for device in self.streams for step in device.open if device.process.gave_up(step.comm)
        ]:
            self.given_up = self.given_up or [(device, step, self.missing(device, step)) for device, step in stuck]
            for device, step in stuck:
                self._over(device, step)
            self._run()

    def _run(self) -> None:
        while self._ready:
            self._go_on(self._ready.pop())

    def _go_on(self, device: _Device) -> None:
        may_stand = self.standing is None or device.process.number in self.standing
        if may_stand and device.stands_before(device.at + 1):
            return
        device.at += 1
        if device.at < len(device.units):
            device.open = list(device.units[device.at])
            for step in device.units[device.at]:
                self._come(device, step)

    def _over(self, device: _Device, step: Step) -> None:
        device.open = [each for each in device.open if each is not step]
        if step.is_semaphore:
            self._passed.add(device.passes(step))
            if (released := self._awaited.pop(device.passes(step), None)) is not None:
                self._over(*released)
        if not device.open:
            self._ready.append(device)

    def _come(self, device: _Device, step: Step) -> None:
        if step.is_semaphore:
            self._come_to_semaphore(device, step)
            return
        if step.is_transfer:
            self._come_to_transfer(device, step)
            return
        comm, number = step.comm, step.call.number
        if comm not in self.comparable:
            self._over(device, step)
            return
        if (comm, number) not in self._missing:
            members = self.comparable[comm].values()
            forgotten = sum(self.devices[each.process.number].has_forgotten(comm, number) for each in members)
            self._missing[comm, number] = len(members) - forgotten
        self.there[comm, number].append((device, step))
        self._missing[comm, number] -= 1
        if self._missing[comm, number] <= 0:
            for each in self.there.pop((comm, number)):
                self._over(*each)

    def _come_to_transfer(self, device: _Device, step: Step) -> None:
        other = self.other_of(device, step)
        key = device.transfer(step)
        if (
            other is None
            or _answers(
                other.process, step.comm, key[1] if step.call.operation == "send" else key[2], step.call.operation
            )
            - _remembered(other, step, device)
            > key[-1]
        ):
            self._over(device, step)
        elif key in self._halves and self._halves[key][0] is not device:
            self._over(*self._halves.pop(key))
            self._over(device, step)
        else:
            self._halves[key] = (device, step)

    def _come_to_semaphore(self, device: _Device, step: Step) -> None:
        other, needed = self.other_of(device, step), device.needs(step)
        if other is None or needed in self._passed or needed[-1] < self._forgotten_answers(other, step, device):
            self._over(device, step)
        else:
            self._awaited[needed] = (device, step)

    @staticmethod
    def _forgotten_answers(other: _Device, step: Step, device: _Device) -> int:
        made = _answers(other.process, step.comm, _own_place(device.process, step), step.call.operation)
        return made - _remembered(other, step, device)

    def other_of(self, device: _Device, step: Step) -> _Device | None:
        """Return the device of a peer, if it is known what it did."""
        peer = device.process.parts[step.comm].peer_of(step.call.root)
        other = self.comparable.get(step.comm, {}).get(peer)
        if other is None or other.process is device.process or other.calls.is_crowded:
            return None
        return self.devices[other.process.number]

    def came_to(self, device: _Device, comm: str, number: int) -> int:
        """Return to how many collectives a device has come, of those before that one."""
        ahead = sum(
            step.comm == comm and not step.is_transfer
            for unit in device.units[device.at + 1 :]
            for step in unit
            if not step.call.what & FORGOTTEN
        )
        return max(0, min(number, device.process.parts[comm].collectives - ahead))

    def missing(self, device: _Device, step: Step) -> tuple[Caller, ...]:
        """Return who has not come to a call to which a device has come."""
        if step.is_transfer:
            other = self.other_of(device, step)
            return (other.process,) if other is not None else ()
        key = (step.comm, step.call.number)
        if key not in self._alike:
            there = {each.process.number for each, _ in self.there[key]}
            self._alike[key] = tuple(
                member.process
                for member in self.comparable[step.comm].values()
                if member.process.number not in there and not self.devices[member.process.number].has_forgotten(*key)
            )
        return self._alike[key]

    def wait(self, device: _Device, step: Step, missing: tuple[Caller, ...]) -> Wait:
        """Return who waits in which call, for whom."""
        if step.is_transfer:
            is_semaphore = step.is_semaphore
            number = device.needs(step)[-1] if is_semaphore else device.transfer(step)[-1]
            made = _answers(missing[0], step.comm, _own_place(device.process, step), step.call.operation)
            made = made if is_semaphore else min(number, made)
        else:
            number = step.call.number
            made = self.came_to(self.devices[missing[0].number], step.comm, number)
        return Wait(device.process, step.comm, step, number, missing, made, device.is_last)


def waits(job: Callers) -> list[Wait]:
    """Return the calls in which processes wait: of each process those on its device, and where its host is."""
    waiting = [process for process in job.processes if not process.ended or process.how == "exception"]
    if not waiting:
        return []
    play = _Play(job)
    standing = (device for device in play.streams if not device.open and device.stands_before(device.at + 1))
    job.standing = {device.process.number for device in standing}
    numbers = {process.number for process in waiting}
    devices = (device for device in play.streams if device.process.number in numbers)
    stuck = ((device, step, play.missing(device, step)) for device in devices for step in device.open)
    found = [play.wait(*each) for each in stuck if each[-1]]
    found += [wait for process in waiting for each in process.making if (wait := making(job, process, each))]
    found += in_agreements(job, waiting)
    job.in_functions = in_functions(waiting, by_process(found)) if found else {}
    return found + list(on_hosts(job))


def waits_without(job: Callers, without: Caller) -> list[Wait]:
    """Return the calls in which processes would wait if one of them did whatever the others want."""
    play = _Play(job, without)
    stuck = ((device, step, play.missing(device, step)) for device in play.streams for step in device.open)
    found = [play.wait(*each) for each in stuck if each[-1]]
    others = [process for process in job.processes if process is not without]
    makings = (making(job, process, each) for process in others for each in process.making)
    found += [wait for wait in makings if wait and not _is_over(wait, without)]
    found += in_agreements(job, others, without)
    return found + list(on_hosts(job, without))


def _is_over(wait: Wait, without: Caller) -> bool:
    """Whether nobody waits in the making of a communicator if that process comes there."""
    return without in wait.missing and (wait.some or len(wait.missing)) == 1


def given_up(job: Callers) -> list[Wait]:
    """Return the calls in which processes waited when their program aborted the communicator, and went on."""
    if not any(calls.aborted for process in job.processes for calls in process.parts.values()):
        return []
    play = _Play(job)
    return [play.wait(*each) for each in play.given_up if each[-1]]


def _answers(process: Caller, comm: str, rank: int, operation: str) -> int:
    """Return how many of the other halves of a rank's transfers of a kind a process has called."""
    peers = [peer for peer in process.parts[comm].peers if peer.rank == rank]
    return sum(peer.received if operation in _SENDING else peer.sent for peer in peers)


def _remembered(other: _Device, step: Step, device: _Device) -> int:
    rank, wanted = _own_place(device.process, step), _ANSWER.get(step.call.operation)
    return sum(call.root == rank and call.operation == wanted for call in other.process.parts[step.comm].last_transfers)

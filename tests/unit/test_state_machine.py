"""Random histories of a registrar, held against a model that says in few words what must be registered."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tracehook._testing import Harness
from tracehook.log.records import fields_of, unpack

PAGE = 4096
DEVICES = st.integers(0, 1)
POINTERS = st.integers(1, 5)
PAGES = st.integers(1, 8)
LENGTHS = st.integers(1, 3)


PATIENCE = 20.0  # seconds after which something that should have happened has not


@dataclass
class Waiting:
    """A call of the allocator that waits for a busy library; what becomes true when it returns."""

    thread: threading.Thread
    going: set[int]
    returned: Callable[[], None]


@dataclass
class Model:
    """A communicator: `slow` means that the library is busy, so registrations come later."""

    device: int
    parent: int | None
    slow: bool = False
    failed: bool = False
    budget: int | None = None  # registrations that still succeed
    held: dict[int, int] = field(default_factory=dict)


class _Registrar(RuleBasedStateMachine):
    """What the sources would say, in any order, on two devices with few addresses and few pointers."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(ring_capacity=1 << 14, patience_ms=1)
        self.live: dict[int, dict[int, int]] = {0: {}, 1: {}}
        self.communicators: dict[int, Model] = {}
        self.tombstones: set[tuple[int, int]] | None = None
        self.waiting: dict[int, Waiting] = {}  # by device: the allocator makes one call at a time there
        self.on = True
        self.seen = 0
        self.on_the_other_side: dict[int, dict[int, int]] = {}
        self.ids: set[int] = set()  # of segments; those of communicators
        self.communicator_ids: list[int] = []
        self.told: Counter[str] = Counter()  # how many events of these names there must be
        self.freed: list[tuple[int, int]] = []  # during adoptions: device and page
        self.unknown: list[int] = []  # addresses of which the log must say that nobody saw their allocation or free

    @initialize(pointer=POINTERS, device=DEVICES)
    def begin(self, pointer: int, device: int) -> None:
        self.create(pointer, device, None)

    # --- the model's two moves ---

    def log_overdue(self, model: Model) -> None:
        """Register what is missing, or fail on the way."""
        if model.slow or model.failed or not self.on:
            return
        for address, size in self.staying(model.device, self.live[model.device]).items():
            if address in model.held:
                continue
            if model.budget is not None:
                model.budget -= 1
                if model.budget < 0:
                    model.failed = True
                    model.held.clear()
                    return
            model.held[address] = size

    def staying(self, device: int, held: dict[int, int]) -> dict[int, int]:
        """Without what is just being freed: who holds that still depends on how far the free has come."""
        going = self.waiting[device].going if device in self.waiting else set()
        return {address: size for address, size in held.items() if address not in going}

    def born(self, device: int, address: int) -> None:
        """Take note of the new segment's id, which no other had."""
        (number,) = (row.id for row in self.harness.segments() if (row.device, row.address) == (device, address))
        assert number not in self.ids
        self.ids.add(number)

    def settle_all(self, device: int) -> None:
        for model in self.communicators.values():
            if model.device == device:
                self.log_overdue(model)

    def overlapping(self, device: int, address: int, size: int) -> list[int]:
        live = self.live[device]
        return [other for other, length in live.items() if other < address + size and address < other + length]

    def waits(self, device: int, addresses: set[int]) -> bool:
        """Whether a busy library holds one of these: their free waits for it."""
        slow = [model for model in self.communicators.values() if model.slow and model.device == device]
        return any(address in model.held for model in slow for address in addresses)

    def call(self, device: int, going: set[int], made: Callable[[], None], returned: Callable[[], None]) -> None:
        """Make a call of the allocator after which `going` are gone; on a thread of its own if it waits."""

        def is_under_way() -> bool:
            return not any(row.device == device and row.address in going for row in self.harness.segments())

        if not self.waits(device, going):
            made()
            returned()
            return
        thread = threading.Thread(target=made, daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while not is_under_way():
            assert time.monotonic() < deadline, "it never began"
            time.sleep(0.0002)
        assert thread.is_alive()
        self.waiting[device] = Waiting(thread, going, returned)

    def collect(self) -> None:
        """What waited for a library that is ready now, or has ended, returns."""
        for device, waiting in list(self.waiting.items()):
            if self.waits(device, waiting.going):
                continue
            waiting.thread.join(PATIENCE)
            assert not waiting.thread.is_alive(), "a free hangs"
            del self.waiting[device]
            waiting.returned()

    def go(self, device: int, address: int) -> None:
        del self.live[device][address]
        for model in self.communicators.values():
            if model.device == device:
                model.held.pop(address, None)

    # --- segments ---

    @rule(device=DEVICES, page=PAGES, length=LENGTHS)
    def alloc(self, device: int, page: int, length: int) -> None:
        if device in self.waiting:
            return
        address, size = page * PAGE, length * PAGE
        stale = self.overlapping(device, address, size)
        self.unknown += stale
        self.told["segment.alloc"] += 1

        def returned() -> None:
            for other in stale:
                self.go(device, other)
            self.live[device][address] = size
            self.born(device, address)
            if self.tombstones is not None:
                self.tombstones.discard((device, address))
            self.settle_all(device)

        self.call(device, set(stale), lambda: self.harness.alloc(device, address, size), returned)

    @rule(device=DEVICES, page=PAGES)
    def free(self, device: int, page: int) -> None:
        if device in self.waiting:
            return
        address = page * PAGE
        size = self.live[device].get(address, PAGE)

        def returned() -> None:
            if address in self.live[device]:
                self.go(device, address)

        if address in self.live[device]:
            self.told["segment.free"] += 1
        elif self.tombstones is None:
            self.unknown.append(address)
        if self.tombstones is not None:
            self.tombstones.add((device, address))
            self.freed.append((device, page))
        self.call(device, {address}, lambda: self.harness.free(device, address, size), returned)

    @precondition(lambda self: self.tombstones is None)
    @rule()
    def begin_adoption(self) -> None:
        self.harness.begin_adoption()
        self.tombstones = set()

    @precondition(lambda self: self.tombstones is not None)
    @rule(device=DEVICES, page=PAGES, length=LENGTHS)
    def adopt(self, device: int, page: int, length: int) -> None:
        if device in self.waiting:
            return
        address, size = page * PAGE, length * PAGE
        self.harness.adopt(device, address, size)
        if (device, address) in (self.tombstones or ()) or self.overlapping(device, address, size):
            return
        self.live[device][address] = size
        self.told["segment.adopt"] += 1
        self.born(device, address)
        self.settle_all(device)

    @precondition(lambda self: self.tombstones is not None and self.freed)
    @rule(which=st.integers(0, 3), length=LENGTHS)
    def adopt_what_was_freed(self, which: int, length: int) -> None:
        """In this adoption, of which a tombstone tells, or in an earlier one."""
        self.adopt(*self.freed[-1 - which % len(self.freed)], length)

    @precondition(lambda self: self.tombstones is not None)
    @rule()
    def end_adoption(self) -> None:
        self.harness.end_adoption()
        self.tombstones = None

    # --- communicators ---

    @rule(pointer=POINTERS, device=DEVICES, parent=st.none() | POINTERS)
    def create(self, pointer: int, device: int, parent: int | None) -> None:
        known = self.communicators.get(parent or 0) if parent != pointer else None
        if known is not None:
            device = known.device
        if pointer in self.communicators and self.communicators[pointer].slow:
            self.retire(pointer)  # a free may wait for it: its last calls would count as those of the new one
            self.every_call_makes_sense()
        self.harness.fail_after(pointer, 1 << 30)
        self.harness.set_in_progress(pointer, False)
        self.harness.create(pointer, device=device, parent=(parent or 0) if known is not None else 0)
        self.on_the_other_side[pointer] = {}
        (number,) = (row["id"] for row in self.harness.communicators() if row["pointer"] == pointer)
        assert number > max(self.communicator_ids, default=0)
        self.communicator_ids.append(number)
        self.communicators[pointer] = Model(device, parent)
        self.log_overdue(self.communicators[pointer])
        self.collect()  # of the one that had the pointer before

    @rule(pointer=POINTERS)
    def collective(self, pointer: int) -> None:
        assert self.harness.collective(pointer) is (pointer in self.communicators)

    @rule(pointer=POINTERS)
    def become_busy(self, pointer: int) -> None:
        if pointer in self.communicators:
            self.harness.set_in_progress(pointer, True)
            self.communicators[pointer].slow = True

    @rule(pointer=POINTERS, enter=st.booleans())
    def become_ready(self, pointer: int, enter: bool) -> None:
        if pointer in self.communicators:
            self.harness.set_in_progress(pointer, False)
            self.harness.collective(pointer) if enter else self.harness.poke(pointer)
            self.communicators[pointer].slow = False
            self.log_overdue(self.communicators[pointer])
            self.collect()

    @rule(pointer=POINTERS, calls=st.integers(0, 4))
    def fail_after(self, pointer: int, calls: int) -> None:
        if pointer in self.communicators:
            self.harness.fail_after(pointer, calls)
            self.communicators[pointer].budget = calls

    @rule(pointer=POINTERS)
    def retire(self, pointer: int) -> None:
        self.harness.retire(pointer)  # what a busy one holds is left to the library's own end
        self.communicators.pop(pointer, None)
        self.collect()

    @rule(pointer=POINTERS)
    def kill(self, pointer: int) -> None:
        self.harness.kill(pointer)
        self.communicators.pop(pointer, None)
        self.on_the_other_side.pop(pointer, None)  # the library frees its side itself
        self.collect()

    @rule()
    def switch(self) -> None:
        self.on = not self.on
        self.harness.set_registering(self.on)
        for model in self.communicators.values():
            if self.on:
                self.log_overdue(model)
            elif not model.slow:
                model.held.clear()  # a busy one keeps what it has: off does not wait for ever

    @rule()
    def switch_twice(self) -> None:
        self.switch()
        self.every_call_makes_sense()
        self.switch()

    @rule()
    def switch_to_what_it_is(self) -> None:
        before = len(self.harness.calls()), self.harness.peek(1 << 14)
        self.harness.set_registering(self.on)
        assert (len(self.harness.calls()), self.harness.peek(1 << 14)) == before

    # --- what must be true after each of these ---

    @invariant()
    def exactly_the_live_segments_are_held(self) -> None:
        for pointer, model in self.communicators.items():
            held = self.staying(model.device, dict(self.harness.held(pointer)))
            assert held == self.staying(model.device, model.held)
            if self.on and not model.slow and not model.failed:
                assert held == self.staying(model.device, self.live[model.device])

    @invariant()
    def every_call_makes_sense(self) -> None:
        calls = self.harness.calls()
        for pointer, verb, address, size, result in calls[self.seen :]:
            held = self.on_the_other_side[pointer]  # a call after a kill has no such row
            if verb == "register":
                assert self.on
                assert pointer in self.communicators
                assert not any(other < address + size and address < other + length for other, length in held.items())
                if result == 0:
                    held[address] = size
            else:
                assert held.pop(address) == size
        self.seen = len(calls)
        assert self.harness.violations == 0

    @invariant()
    def the_ledger_is_the_model(self) -> None:
        segments = self.harness.segments()
        assert len({segment.id for segment in segments}) == len(segments)
        rows = {(segment.device, segment.address, segment.size) for segment in segments}
        live = {device: self.staying(device, segments) for device, segments in self.live.items()}
        assert rows == {(device, *item) for device, segments in live.items() for item in segments.items()}

    @invariant()
    def status_is_the_model(self) -> None:
        rows = {row["pointer"]: (row["held"], row["failed"]) for row in self.harness.communicators()}
        assert rows.keys() == self.communicators.keys()
        for pointer, model in self.communicators.items():
            held, failed = rows[pointer]
            assert failed == model.failed
            assert held == len(model.held) or model.device in self.waiting

    def teardown(self) -> None:
        """What waits returns at the latest when all have ended."""
        for pointer in list(self.communicators):
            self.kill(pointer)
        assert self.waiting == {}
        self.check_events()

    def check_events(self) -> None:
        """Every event of the history is in the ring, numbered without a gap, also per communicator; and no others."""
        records = list(unpack(self.harness.peek(1 << 14)))
        events = [(name, fields) for name, fields in map(fields_of, records)]
        found = Counter(name for name, _ in events)
        assert {name: found[name] for name in self.told} == self.told
        assert sorted(int(row["addr"], 16) for name, row in events if name == "segment.unknown") == sorted(self.unknown)
        failed = [row["comm_id"] for name, row in events if name == "communicator.failed"]
        assert len(failed) == len(set(failed))
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        for comm in {record.comm_id for record in records if record.comm_id}:
            numbers = [record.comm_seq for record in records if record.comm_id == comm]
            assert numbers == list(range(1, len(numbers) + 1))


_Registrar.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRegistrar = pytest.mark.timeout(120)(_Registrar.TestCase)
TestRegistrar.__doc__ = (
    "After each step of any history every communicator holds exactly the live segments of its device."
)

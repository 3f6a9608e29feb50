"""Random histories of a registrar, held against a model that says in few words what must be registered."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tracehook._testing import Harness
from tracehook.log import ring

PAGE = 4096
DEVICES = st.integers(0, 1)
POINTERS = st.integers(1, 5)
PAGES = st.integers(1, 8)
LENGTHS = st.integers(1, 3)


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
        self.harness = Harness(ring_capacity=1 << 14)
        self.live: dict[int, dict[int, int]] = {0: {}, 1: {}}
        self.communicators: dict[int, Model] = {}
        self.tombstones: set[tuple[int, int]] | None = None
        self.on = True
        self.seen = 0
        self.on_the_other_side: dict[int, dict[int, int]] = {}

    @initialize(pointer=POINTERS, device=DEVICES)
    def begin(self, pointer: int, device: int) -> None:
        self.create(pointer, device, None)

    # --- the model's two moves ---

    def log_overdue(self, model: Model) -> None:
        """Register what is missing, or fail on the way."""
        if model.slow or model.failed or not self.on:
            return
        for address, size in self.live[model.device].items():
            if address in model.held:
                continue
            if model.budget is not None:
                model.budget -= 1
                if model.budget < 0:
                    model.failed = True
                    model.held.clear()
                    return
            model.held[address] = size

    def settle_all(self, device: int) -> None:
        for model in self.communicators.values():
            if model.device == device:
                self.log_overdue(model)

    def overlapping(self, device: int, address: int, size: int) -> list[int]:
        live = self.live[device]
        return [other for other, length in live.items() if other < address + size and address < other + length]

    def may_go(self, device: int, addresses: list[int]) -> bool:
        """Whether these can be deregistered now; with a busy library the call would wait for it."""
        slow = [model for model in self.communicators.values() if model.slow and model.device == device]
        return not any(address in model.held for model in slow for address in addresses)

    def go(self, device: int, address: int) -> None:
        del self.live[device][address]
        for model in self.communicators.values():
            if model.device == device:
                model.held.pop(address, None)

    # --- segments ---

    @rule(device=DEVICES, page=PAGES, length=LENGTHS)
    def alloc(self, device: int, page: int, length: int) -> None:
        address, size = page * PAGE, length * PAGE
        stale = self.overlapping(device, address, size)
        if not self.may_go(device, stale):
            return
        self.harness.alloc(device, address, size)
        for other in stale:
            self.go(device, other)
        self.live[device][address] = size
        if self.tombstones is not None:
            self.tombstones.discard((device, address))
        self.settle_all(device)

    @rule(device=DEVICES, page=PAGES)
    def free(self, device: int, page: int) -> None:
        address = page * PAGE
        if not self.may_go(device, [address]):
            return
        self.harness.free(device, address, self.live[device].get(address, PAGE))
        if self.tombstones is not None:
            self.tombstones.add((device, address))
        if address in self.live[device]:
            self.go(device, address)

    @precondition(lambda self: self.tombstones is None)
    @rule()
    def begin_adoption(self) -> None:
        self.harness.begin_adoption()
        self.tombstones = set()

    @precondition(lambda self: self.tombstones is not None)
    @rule(device=DEVICES, page=PAGES, length=LENGTHS)
    def adopt(self, device: int, page: int, length: int) -> None:
        address, size = page * PAGE, length * PAGE
        self.harness.adopt(device, address, size)
        if (device, address) in self.tombstones or self.overlapping(device, address, size):
            return
        self.live[device][address] = size
        self.settle_all(device)

    @precondition(lambda self: self.tombstones is not None)
    @rule()
    def end_adoption(self) -> None:
        self.harness.end_adoption()
        self.tombstones = None

    # --- communicators ---

    @rule(pointer=POINTERS, device=DEVICES, parent=st.none() | POINTERS)
    def create(self, pointer: int, device: int, parent: int | None) -> None:
        known = self.communicators.get(parent) if parent != pointer else None
        if known is not None:
            device = known.device
        self.harness.fail_after(pointer, 1 << 30)
        self.harness.set_in_progress(pointer, False)
        self.harness.create(pointer, device=device, parent=parent if known is not None else 0)
        self.on_the_other_side[pointer] = {}
        self.communicators[pointer] = Model(device, parent)
        self.log_overdue(self.communicators[pointer])

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

    @rule(pointer=POINTERS, calls=st.integers(0, 4))
    def fail_after(self, pointer: int, calls: int) -> None:
        if pointer in self.communicators:
            self.harness.fail_after(pointer, calls)
            self.communicators[pointer].budget = calls

    @rule(pointer=POINTERS)
    def retire(self, pointer: int) -> None:
        model = self.communicators.get(pointer)
        if model is not None and model.slow and model.held:
            return  # it would wait
        self.harness.retire(pointer)
        self.communicators.pop(pointer, None)

    @rule(pointer=POINTERS)
    def kill(self, pointer: int) -> None:
        self.harness.kill(pointer)
        self.communicators.pop(pointer, None)
        self.on_the_other_side.pop(pointer, None)  # the library frees its side itself

    @rule()
    def switch(self) -> None:
        if self.on and any(model.slow and model.held for model in self.communicators.values()):
            return  # it would wait
        self.on = not self.on
        self.harness.set_registering(self.on)
        for model in self.communicators.values():
            if self.on:
                self.log_overdue(model)
            else:
                model.held.clear()

    # --- what must be true after each of these ---

    @invariant()
    def exactly_the_live_segments_are_held(self) -> None:
        held = {pointer: dict(self.harness.held(pointer)) for pointer in self.communicators}
        assert held == {pointer: model.held for pointer, model in self.communicators.items()}
        for model in self.communicators.values():
            if self.on and not model.slow and not model.failed:
                assert model.held == self.live[model.device]

    @invariant()
    def every_call_makes_sense(self) -> None:
        calls = self.harness.calls()
        for pointer, verb, address, size, result in calls[self.seen :]:
            held = self.on_the_other_side[pointer]  # a call after a kill has no such row
            if verb == "register":
                assert address not in held
                if result == 0:
                    held[address] = size
            else:
                assert held.pop(address) == size
        self.seen = len(calls)
        assert self.harness.violations == 0

    @invariant()
    def the_ledger_is_the_model(self) -> None:
        segments = self.harness.segments()
        assert len({segment[0] for segment in segments}) == len(segments)
        rows = {(device, address, size) for _, device, address, size in segments}
        assert rows == {(device, *item) for device, live in self.live.items() for item in live.items()}

    @invariant()
    def status_is_the_model(self) -> None:
        rows = {row["pointer"]: (row["held"], row["failed"]) for row in self.harness.communicators()}
        expected = {pointer: (len(model.held), model.failed) for pointer, model in self.communicators.items()}
        assert rows == expected

    def teardown(self) -> None:
        """Every event of the history is in the ring, numbered without a gap, also per communicator."""
        records = list(ring.unpack(self.harness.peek(1 << 14)))
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

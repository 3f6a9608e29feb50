"""Random histories of the bank and the windows on it, held against a model of a few dictionaries."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tracehook import _core
from tracehook._testing import Harness

PAGE = 4096
LIMIT = 10 * PAGE
POINTERS = st.integers(1, 3)
POOLS = st.integers(1, 2)
DEVICES = st.integers(0, 1)
PAGES = st.integers(1, 2)
WHICH = st.integers(0, 7)
SEGMENTS = st.lists(st.integers(1, 10), max_size=3, unique=True)


@dataclass
class Segment:
    """One of the bank's; in the model its windows are counted from the communicators."""

    pool: int
    device: int
    size: int
    address: int
    owner: int
    retired: bool = False


@dataclass
class Communicator:
    """Ordinal by segment; those that wait for their confirmation; the next ordinal."""

    table: dict[int, int] = field(default_factory=dict)
    unconfirmed: list[int] = field(default_factory=list)
    next: int = 0


class _Bank(RuleBasedStateMachine):
    """What torch, the ranks and the end of communicators would do, on two devices with little memory."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(ring_capacity=64)
        self.harness.open_bank(LIMIT)
        self.segments: dict[int, Segment] = {}
        self.communicators: dict[int, Communicator] = {}
        self.released: set[int] = set()
        self.last_id = 0
        self.refusals = 0

    @initialize()
    def begin(self) -> None:
        self.create(1)

    def windows(self, segment: int) -> int:
        return sum((segment in one.table) + one.unconfirmed.count(segment) for one in self.communicators.values())

    def member(self, pointer: int) -> _core.Communicator:
        found = self.harness.find_communicator(pointer)
        assert found is not None
        return found

    def held(self, device: int) -> int:
        return sum(segment.size for segment in self.segments.values() if segment.device == device)

    def go(self, segment: int) -> int:
        gone = self.segments.pop(segment)
        self.released.add(gone.address)
        return gone.size

    def go_idle(self) -> int:
        idle = [number for number, one in self.segments.items() if one.retired and not self.windows(number)]
        return sum(self.go(number) for number in idle)

    # --- torch ---

    @rule(pool=POOLS, device=DEVICES, pages=PAGES, owner=st.integers(0, 3))
    def take(self, pool: int, device: int, pages: int, owner: int) -> None:
        size = pages * PAGE
        held = self.held(device)
        address = self.harness.take(pool, device, size, owner)
        equal = [
            n
            for n, one in self.segments.items()
            if one.retired and (one.pool, one.device, one.size) == (pool, device, size)
        ]
        if equal:
            oldest = self.segments[min(equal)]
            assert address == oldest.address
            oldest.retired, oldest.owner = False, owner
        elif held + size > LIMIT:
            self.refusals += 1
            assert address == 0
            last = self.harness.last_refusal()
            assert (last.count, last.device, last.wanted, last.held) == (self.refusals, device, size, held)
            assert last.limit == LIMIT
        else:
            self.last_id += 1
            assert address not in {one.address for one in self.segments.values()}
            self.segments[self.last_id] = Segment(pool, device, size, address, owner)
            self.released.discard(address)

    @rule(which=WHICH)
    def give_back(self, which: int) -> None:
        used = [number for number, one in self.segments.items() if not one.retired]
        if not used:
            return
        number = used[which % len(used)]
        assert self.harness.give_back(self.segments[number].address)
        if self.windows(number):
            self.segments[number].retired = True
        else:
            self.go(number)

    @rule(pointer=POINTERS, pool=POOLS, device=DEVICES, pages=PAGES, turned=st.booleans())
    def retire_two(self, pointer: int, pool: int, device: int, pages: int, turned: bool) -> None:
        """Two equal segments with windows are seldom given back by chance, before one of them serves again."""
        for _ in range(2):
            self.take(pool, device, pages, 0)
        alike = [
            n for n, one in self.segments.items() if (one.pool, one.device, one.size) == (pool, device, pages * PAGE)
        ]
        self.register(pointer, alike, None)
        self.confirm(pointer)
        for number in alike[::-1] if turned else alike:
            used = [each for each, one in self.segments.items() if not one.retired]
            if number in used:
                self.give_back(used.index(number))

    @rule()
    def release_idle(self) -> None:
        assert self.harness.release_idle() == self.go_idle()

    # --- the ranks ---

    @rule(pointer=POINTERS, wanted=SEGMENTS, budget=st.none() | st.integers(0, 2))
    def register(self, pointer: int, wanted: list[int], budget: int | None) -> None:
        model = self.communicators.get(pointer)
        if model is None:
            return
        wanted = [one for one in wanted if one not in model.table and one not in model.unconfirmed]
        self.harness.fail_after(pointer, 1 << 30 if budget is None else budget)
        outcomes = self.member(pointer).register_windows(wanted)
        if any(one not in self.segments for one in wanted):
            assert outcomes == []
            return
        good = len(wanted) if budget is None else min(budget, len(wanted))
        assert outcomes == [(0, True)] * good + [(1, False)] * (good < len(wanted))
        model.unconfirmed += wanted[:good]

    @rule(pointer=POINTERS)
    def confirm(self, pointer: int) -> None:
        model = self.communicators.get(pointer)
        if model is None:
            return
        assert self.member(pointer).confirm_windows()
        for segment in model.unconfirmed:
            model.table[segment] = model.next
            model.next += 1
        model.unconfirmed.clear()

    @rule(pointer=POINTERS)
    def drop(self, pointer: int) -> None:
        model = self.communicators.get(pointer)
        if model is not None:
            assert self.member(pointer).drop_windows() == len(model.unconfirmed)
            model.unconfirmed.clear()

    @rule(pointer=POINTERS, leaving=st.lists(st.integers(1, 10), max_size=3))
    def deregister(self, pointer: int, leaving: list[int]) -> None:
        model = self.communicators.get(pointer)
        if model is not None:
            undone = self.member(pointer).deregister_windows(leaving)
            assert undone == len([model.table.pop(one) for one in leaving if one in model.table])

    # --- communicators ---

    @rule(pointer=POINTERS)
    def create(self, pointer: int) -> None:
        self.harness.create(pointer)  # the end of one that had this pointer was not seen
        self.communicators[pointer] = Communicator()

    @rule(pointer=POINTERS)
    def retire(self, pointer: int) -> None:
        self.harness.retire(pointer)
        if self.communicators.pop(pointer, None) is not None:
            self.go_idle()

    @rule(pointer=POINTERS)
    def kill(self, pointer: int) -> None:
        self.harness.kill(pointer)
        self.communicators.pop(pointer, None)

    # --- what must be true after each of these ---

    @invariant()
    def the_bank_is_the_model(self) -> None:
        assert [
            (row.id, row.pool, row.owner, row.device, row.address, row.size, row.retired, row.windows)
            for row in self.harness.pool_segments()
        ] == [
            (number, one.pool, one.owner, one.device, one.address, one.size, one.retired, self.windows(number))
            for number, one in sorted(self.segments.items())
        ]

    @invariant()
    def memory_goes_with_its_segment(self) -> None:
        assert all(self.harness.mapped(one.address) for one in self.segments.values())
        assert not any(self.harness.mapped(address) for address in self.released)

    @invariant()
    def the_windows_are_the_model(self) -> None:
        for pointer, model in self.communicators.items():
            member = self.member(pointer)
            assert {row["segment"]: row["ordinal"] for row in member.windows()} == model.table
            assert member.missing(list(range(1, 11))) == [one for one in range(1, 11) if one not in model.table]
            assert len(self.harness.held(pointer)) == len(model.table) + len(model.unconfirmed)
            for segment in model.table:
                one = self.segments[segment]
                assert member.holds(one.address, one.size)
            for segment in model.unconfirmed:
                assert not member.holds(self.segments[segment].address, 1)
        assert self.harness.violations == 0


_Bank.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestBank = pytest.mark.timeout(120)(_Bank.TestCase)
TestBank.__doc__ = (
    "After each step of any history a segment lives exactly as long as torch or a communicator has use for it."
)

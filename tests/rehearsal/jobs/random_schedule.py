"""Random schedules, one seed after the other on groups of their own, and a judgement on each.

Arguments: the first seed, how many, and a divergence for all of them (``none``: in no seed) instead of one in a third,
and ``stubborn``: a rank goes on after what it announces, so that all have to be at one point of the program again.
With ``patient`` no agreement ends by its time-out where somebody can answer, however busy the machine is.
A device that an abort leaves busy makes that seed the last one: the process tells `next`, the seed to go on with in a
new process, and ends with status STUCK (`schedules_on_devices.py`).
Each rank tells `failures`, the seeds that went wrong and how; `ended`, how many seeds ended in which way; `before` and
`after`, what the process held when the first seed began and when the last one had ended. A step that takes longer
than HARD seconds ends the process with the stacks of all threads.
"""

import contextlib
import dataclasses
import faulthandler
import gc
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import groups
from tracehook.settings import Settings
from tracehook.symmetric_memory import state

from common import MB, RANK, WORLD, tell
from rescue import Rescue, ends
from schedules import MAY_HANG, Beside, Collect, Enter, Free, Make, Rules, Schedule, Step, Sync, Trim, draw
from schedules_on_devices import STUCK
from tcp import connect

CHUNK = 64  # elements: what one rank contributes to a gather
STRIDE = MB // 4  # elements from one slot of a tensor to the next
SHORT, LOOK, ANSWERED, LONG = 0.4, 1.0, 4.0, 15.0  # seconds; of an agreement, but for LOOK
GRACE = 10.0  # seconds
SLACK = 25.0
HARD = 60.0

STUBBORN = "stubborn" in sys.argv
FIRST, COUNT = int(sys.argv[1]), int(sys.argv[2])
ISOLATED = os.environ.get("SYMM_REGISTER_POLICY") == "isolated"
# Every group is of all ranks, or each rank is in one of several that do the same; but where the pools are isolated one
# rank may stand aside.
MEMBERS: dict[str, list[list[int]]] = {"all": [list(range(WORLD))], "twin": [list(range(WORLD))]}
if WORLD == 4:
    MEMBERS["pair"] = [[0, 1], [2, 3]]
elif WORLD == 3 and ISOLATED:
    MEMBERS["part"] = [[0, 1]]
APART = "part" if "part" in MEMBERS else "-"
RULES = Rules(tuple(MEMBERS), hangs="hangs" in sys.argv, apart=APART, threads="threads" in sys.argv)


# What need not be raised on all ranks: some do not come, cannot go on, are further, or wait inside NCCL.
ONE_SIDED = (
    "did not come",
    "it was aborted",
    "could not go on",
    "may be inside NCCL",
    "waits at",
    "used different",
)


class OnPurpose(Exception):
    """The exception of a scope that fails."""


class Left(Exception):
    """Another rank has announced something, and does not go on."""


device, store = connect()
rescue = Rescue(store)


def value(step: int, rank: int, chunk: int, tensor: int = 0) -> int:
    """Return what the chunk of a buffer is filled with: all differ, and their sums are exact."""
    return (step * 1_000_003 + rank * 7_919 + chunk * 104_729 + tensor * 15_485_863) * 2_654_435_761 % 2**32 >> 14


@dataclasses.dataclass
class Outcome:
    """How a seed went on one rank. Steps by number."""

    completed: int = 0
    announced: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)  # step, class, text
    wrong: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    other: list[str] = dataclasses.field(default_factory=list)  # foreign exceptions, and what took too long


class Run:
    """One seed on this rank."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.stop = f"stop {schedule.seed}"
        self.timeout = LONG
        if schedule.divergence:
            # Shorter than an alarm and its answer take, or longer.
            self.timeout = (ANSWERED if schedule.seed % 3 == 0 else 2 * LOOK) if "hangs" in sys.argv else SHORT
        if "patient" in sys.argv:
            self.timeout = LONG
        # Who goes on waits for all that the others wait for.
        self.limit = (2 + STUBBORN * len(schedule.steps)) * self.timeout + SLACK
        self.outcome = Outcome()
        self.index = 0
        self.tensors: dict[int, torch.Tensor] = {}
        self.contents: dict[tuple[int, int], list[float]] = {}  # by tensor and slot, one value for each chunk
        self.groups: dict[str, dist.ProcessGroup] = {}
        self.ranks: dict[str, list[int]] = {}
        for name in schedule.groups:
            for members in MEMBERS[name]:
                group = dist.new_group(members, device_id=device)
                if RANK in members:
                    self.groups[name], self.ranks[name] = group, members

    def play(self) -> Outcome:
        """Go through the steps, up to what this rank or another one announces, or in spite of it."""
        # What waits for an agreement ends by itself, and is to say how.
        with rescue.watching(self.stop, list(self.groups.values()), self.timeout + GRACE):
            self.go()
        if self.outcome.other:
            store.set(self.stop, "1")
        return self.outcome

    def go(self) -> None:
        """Go through the steps, and leave with what another rank announces."""
        try:
            for index, steps in enumerate(self.schedule.of(RANK)):
                self.index = index
                self.look_around()
                faulthandler.dump_traceback_later(HARD, exit=True)
                begin = time.monotonic()
                self.take(steps)
                took = time.monotonic() - begin
                if took > self.limit:
                    self.outcome.other.append(f"step {self.index} took {took:.1f} s")
                self.outcome.completed += 1
        except Left:
            pass
        except Exception as problem:
            if not rescue.has_aborted:
                self.outcome.other.append(f"step {self.index}: {type(problem).__name__}: {problem}")

    def take(self, steps: list[Step]) -> None:
        """Do what one step is on this rank; note what is announced."""
        for step in steps:
            try:
                self.do(step)
            except (tracehook.RegistrationError, dist.DistBackendError) as problem:
                if rescue.has_aborted:
                    raise Left from None
                if not self.note(problem):
                    raise
                if not STUBBORN:
                    store.set(self.stop, "1")
                    raise Left from None
                for make in step.made() if isinstance(step, Enter) else ():
                    if make.tensor not in self.tensors:
                        self.make(make)

    def note(self, problem: BaseException) -> bool:
        """Note what is announced; tell whether this is."""
        text = str(problem).split("\nException raised from")[0]
        announced = "tracehook" in text or isinstance(problem, tracehook.RegistrationError)
        # After tracehook has said why and aborted a group of this seed, torch raises a sentence of its own.
        ended = {row["group"] for row in tracehook.status()["windows"] if row["refused"] == "failed"}
        names = {group.group_name for group in self.groups.values()}
        announced = announced or ("was aborted on rank" in text and not ended.isdisjoint(names))
        said = (self.index, type(problem).__name__, text)
        if announced and said not in self.outcome.announced:
            self.outcome.announced.append(said)
        return announced

    def look_around(self) -> None:
        """Leave if another rank has announced something."""
        if store.check([self.stop]):
            raise Left

    def do(self, step: Step) -> None:
        """Take one step."""
        match step:
            case Make():
                self.make(step)
            case Enter():
                with contextlib.suppress(OnPurpose, torch.OutOfMemoryError):
                    self.enter(step)
            case Free():
                self.check(step.tensors)
                for tensor in step.tensors:
                    del self.tensors[tensor]
            case Collect():
                if step.group in self.groups:
                    self.collect(step)
            case Beside():
                self.beside(step)
            case Sync():
                tracehook.sync(self.of(step.groups))
            case Trim():
                tracehook.trim(self.of(step.groups))

    def of(self, names: tuple[str, ...]) -> list[dist.ProcessGroup]:
        """Return the groups that this rank is in."""
        return [self.groups[name] for name in names if name in self.groups]

    def enter(self, scope: Enter, fill: bool = True) -> None:
        """Go through a scope."""
        with tracehook.symmetric(self.of(scope.groups)):
            for part in scope.body:
                if isinstance(part, Make):
                    self.make(part, fill)
                else:
                    self.enter(part, fill)
            if scope.exhausts:
                torch.empty(1 << 50, dtype=torch.uint8, device=device)
            if scope.fails:
                raise OnPurpose

    def beside(self, step: Beside) -> None:
        """Go through a scope, and make a collective on another thread."""
        problems: list[BaseException] = []

        def collect() -> None:
            try:
                torch.cuda.set_device(device)
                if step.collect.group in self.groups:
                    self.collect(step.collect, alone=False)
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=collect)
        thread.start()
        try:
            self.enter(
                step.scope, fill=False
            )  # to fill would wait for the collective, which may wait for a rank that left
        except tracehook.RegistrationError as problem:
            self.note(problem)  # now: the other thread may wait inside NCCL until this rank's groups are aborted
            thread.join()
            for other in problems:
                self.note(other)
            raise
        finally:
            thread.join()
        if problems:
            raise problems[0]
        for make in step.scope.made():
            self.fill_all(make)
        self.check(self.tensors, step.collect)

    def make(self, make: Make, fill: bool = True) -> None:
        """Make a tensor whose every slot is filled."""
        self.tensors[make.tensor] = torch.empty(make.size * STRIDE, device=device)
        if fill:
            self.fill_all(make)

    def fill_all(self, make: Make) -> None:
        """Fill every slot of a tensor."""
        for slot in range(2):
            self.fill(make.tensor, slot, [value(1000 + slot, RANK, chunk, make.tensor) for chunk in range(WORLD)])

    def part(self, tensor: int, slot: int, chunks: int = WORLD) -> torch.Tensor:
        """Return the first chunks of a slot."""
        begin = slot * STRIDE
        return self.tensors[tensor][begin : begin + chunks * CHUNK]

    def fill(self, tensor: int, slot: int, values: list[int]) -> None:
        """Fill by copying: kernels do nothing on emulated devices."""
        self.part(tensor, slot, len(values)).copy_(torch.tensor(values, dtype=torch.float32).repeat_interleave(CHUNK))
        self.contents.setdefault((tensor, slot), [0] * WORLD)[: len(values)] = values

    def collect(self, step: Collect, alone: bool = True) -> None:
        """Fill the input, call, wait, and look at all tensors: the sums depend on nothing that came before."""
        group, members = self.groups[step.group], self.ranks[step.group]
        ranks, own = len(members), members.index(RANK)
        chunks = {"all_reduce": WORLD, "all_gather": 1, "reduce_scatter": ranks}[step.name]
        given = {rank: [value(self.index, rank, chunk) for chunk in range(chunks)] for rank in members}
        self.fill(step.source, step.slot, given[RANK])
        source = self.part(step.source, step.slot, chunks)
        if step.name == "all_reduce":
            expected = [sum(column) for column in zip(*given.values(), strict=True)]
            work = dist.all_reduce(source, group=group, async_op=step.asynchronous)
        elif step.name == "all_gather":
            expected = [given[rank][0] for rank in members]
            target = self.part(step.target, step.slot, ranks)
            work = dist.all_gather_into_tensor(target, source, group=group, async_op=step.asynchronous)
        else:
            expected = [sum(given[rank][own] for rank in members)]
            target = self.part(step.target, step.slot, 1)
            work = dist.reduce_scatter_tensor(target, source, group=group, async_op=step.asynchronous)
        if work is not None and step.asynchronous:
            work.wait()
        self.finish(step)
        self.contents[step.target, step.slot][: len(expected)] = expected
        if alone:
            self.check(self.tensors, step)

    def finish(self, step: Collect) -> None:
        """Wait for the collective, as long as no other rank has announced something."""
        stream = torch.cuda.current_stream()
        begin = time.monotonic()
        while not stream.query():
            time.sleep(0.0005)
            waited = time.monotonic() - begin
            if waited > 0.01:
                self.look_around()
            if waited > self.limit:
                raise TimeoutError(f"{step} did not end within {waited:.1f} s")
        if rescue.has_aborted:
            raise Left

    def check(self, tensors: Iterable[int], step: Collect | None = None) -> None:
        """Compare tensors with what they have to hold."""
        for tensor in tensors:
            for slot in range(2):
                held = self.part(tensor, slot).cpu().view(WORLD, CHUNK)
                expected = self.contents[tensor, slot]
                if not torch.equal(held, torch.tensor(expected, dtype=torch.float32)[:, None].expand(WORLD, CHUNK)):
                    found = [float(chunk[0]) for chunk in held]
                    about = f"{step}: " if step is not None else ""
                    self.outcome.wrong.append(
                        (self.index, f"{about}tensor {tensor}, slot {slot}: {found} instead of {expected}")
                    )
                    self.contents[tensor, slot] = [float(x) for x in found]  # said once

    def abort(self) -> bool:
        """Abort the groups; tell if the device is free then."""
        faulthandler.dump_traceback_later(HARD, exit=True)

        def abort() -> None:
            # In the same order on all ranks: a rank is in at most one of the groups that have one name.
            for group in self.groups.values():
                dist.distributed_c10d._abort_process_group(group)

        is_free = ends(abort) and ends(torch.cuda.synchronize)
        if is_free:
            self.groups.clear()
        return is_free

    def end(self) -> list[str]:
        """End the groups that live, free the tensors; return what is left then."""
        faulthandler.dump_traceback_later(HARD, exit=True)
        ending = self.schedule.ending if self.groups else ""
        groups = list(self.groups.values())
        left = []
        if ending in ("trim and destroy", "free and destroy"):
            self.tensors.clear()
        if ending == "trim and destroy":
            tracehook.trim(groups)
            left += [f"after trim: {row}" for row in tracehook.status()["windows"] if row["windows"]]
            left += [f"after trim: {row}" for row in tracehook.status()["pools"]]
        while groups:
            dist.destroy_process_group(groups.pop(0))  # in the same order on all ranks, as in abort()
        self.tensors.clear()
        self.groups.clear()
        gc.collect()
        tracehook.trim()
        status = tracehook.status()
        left += [f"pool {row}" for row in status["pools"]]
        left += [f"group {row}" for row in status["windows"] if row["group"] != "0" or row["windows"]]
        if torch.cuda.memory_reserved():
            left.append(f"{torch.cuda.memory_reserved()} bytes of torch's allocator")
        return left


def meet(key: str, word: object) -> list[Any]:
    """Wait for all ranks; return what each has said."""
    store.set(f"{key} {RANK}", json.dumps(word))
    if store.add(f"{key} came", 1) == WORLD:
        store.set(f"{key} met", "1")
    store.wait([f"{key} met"])
    return [json.loads(each) for each in store.multi_get([f"{key} {rank}" for rank in range(WORLD)])]


def forget(key: str) -> None:
    """Remove the keys of a meeting, after a later one."""
    store.delete_key(f"{key} {RANK}")
    if RANK == 0:
        for name in ("came", "met"):
            store.delete_key(f"{key} {name}")


def judge(schedule: Schedule, outcomes: list[Outcome]) -> list[str]:
    """Return what must not have happened."""
    found = [f"rank {rank}: {what}" for rank, each in enumerate(outcomes) for what in each.other]
    first = min((step for each in outcomes for step, _, _ in each.announced), default=None)
    for rank, each in enumerate(outcomes):
        if not schedule.divergence:
            found += [f"rank {rank}: announced without a divergence: {what}" for what in each.announced]
        for step, what in each.wrong:
            # Where only the first use is compared, the last step, a sync, finds the others.
            if first is None or STUBBORN or not schedule.divergence:
                found.append(f"rank {rank}: wrong at step {step}, not announced: {what}")
    return found + one_verdict(outcomes)


def one_verdict(outcomes: list[Outcome]) -> list[str]:
    """Return the mismatches that not all ranks of the group raised: those who compare come to one end."""
    texts = Counter(
        text[text.find("communicator ") :].partition("; no")[0]  # what follows is the same, or is about this rank
        for each in outcomes
        for _, _, text in each.announced
        if not any(part in text for part in ONE_SIDED)
    )
    found = []
    for text, ranks in texts.items():
        group = re.search(r"\(group \S+, (?:(\d+) ranks|ranks ([\d, ]+))\)", text)
        if group is None or ranks % (int(group[1]) if group[1] else len(group[2].split(","))):
            found.append(f"raised by {ranks} rank(s) only: {text}; of {[each.announced for each in outcomes]}")
    return found


def how(schedule: Schedule, outcomes: list[Outcome]) -> str:
    """Return how a seed ended, in a word or two."""
    names = sorted({name for each in outcomes for _, name, _ in each.announced})
    wrong = "wrong, then " if any(each.wrong for each in outcomes) else ""
    return f"{schedule.divergence or 'uniform'}: {wrong}{', '.join(names) or 'right'}"


def held() -> dict[str, int]:
    """Return what the process holds that could grow from seed to seed."""
    own = Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    return {
        "threads": len(list((own / "task").iterdir())),
        "files": len(list((own / "fd").iterdir())),
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") // MB,
        "keys": store.num_keys(),
    }


def one_seed(seed: int, divergence: str | None, settings: Settings) -> tuple[str, list[str], bool]:
    """Play and judge one seed; return how it ended, what was wrong, and whether the devices of all ranks are free."""
    schedule = draw(seed, WORLD, RULES, divergence)
    run = Run(schedule)
    memory._settings = dataclasses.replace(settings, timeout=run.timeout)
    groups.timeout = lambda _: run.timeout
    mine = run.play()
    faulthandler.dump_traceback_later(HARD, exit=True)
    outcomes = [Outcome(**each) for each in meet(f"played {seed}", dataclasses.asdict(mine))]
    broken = bool(schedule.divergence) or any(each.completed < len(schedule.steps) for each in outcomes)
    failures = judge(schedule, outcomes) if RANK == 0 else []
    aborts = broken or schedule.ending == "abort and free"
    are_free = all(meet(f"aborted {seed}", run.abort())) if aborts else True
    if are_free:
        failures += [f"left on rank {RANK}: {what}" for what in run.end()]
    elif RANK == 0 and not any(each.announced for each in outcomes):
        failures.append("a device does not come to an end, and no rank has announced anything")
    meet(f"ended {seed}", 0)
    forget(f"played {seed}")
    forget(f"aborted {seed}")
    forget(f"ended {seed - 1}")
    if RANK == 0:
        store.delete_key(run.stop)
    if failures and "verbose" in sys.argv:
        print(f"seed {seed}, rank {RANK}: {failures}", file=sys.stderr, flush=True)
    return how(schedule, outcomes) + ("" if are_free else ", then stuck"), failures, are_free


chosen = sys.argv[3] if len(sys.argv) > 3 else "some"
divergence = {"some": None, "none": ""}.get(chosen, chosen)
if divergence in MAY_HANG and not RULES.hangs:
    raise SystemExit(f"{divergence!r} needs 'hangs'")
tracehook.trim()  # makes the memory, and the windows of the default group
found = state.Switch.memory
assert found is not None
memory = found
settings = memory._settings
ended: Counter[str] = Counter()
failures: dict[int, list[str]] = {}
before: dict[str, int] = {}
begin = time.monotonic()
for number, seed in enumerate(range(FIRST, FIRST + COUNT)):
    if number == min(20, COUNT // 2):
        gc.collect()
        gc.freeze()  # or looking at everything that torch made costs more than the seed
        before = held()
    outcome, wrong, is_free = one_seed(seed, divergence, settings)
    ended[outcome] += 1
    if wrong:
        failures[seed] = wrong
    if not is_free:
        break
faulthandler.cancel_dump_traceback_later()
tell(failures=dict(list(failures.items())[:20]), failed=len(failures))
tell(ended=dict(sorted(ended.items())), seconds=round(time.monotonic() - begin, 1), before=before, after=held())
if not is_free:
    tell(next=seed + 1)
    os._exit(STUCK)  # an orderly end would wait for the device
dist.destroy_process_group()

"""Two ranks, many times; the second one is killed each time, at another moment, by a parent that only looks on.

Arguments: the first round, how many, a seed, and the directory that gets a directory of logs for each round. The ranks
are forked from this process, which never uses CUDA, so that importing torch costs its time once. After each step of its
work a rank notes in shared memory what torch and the emulated NCCL have counted up to there (`COUNTED`): that is no
count of tracehook's. The parent tells, for each round, what both ranks had noted when they were gone.
"""

import atexit
import contextlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

MOMENTS = ("birth", "start", "start", "writing", "writing", "work", "work", "work")  # of the kills
STEPS = 30  # at most, before the kill
PATIENCE = 0.15  # seconds that the other rank is given
LIMIT = 20.0  # seconds after which something is wrong
COUNTED = ("born", "freed", "made", "undone", "windows", "dropped", "communicators", "segments", "bytes")
CALLS = ("ncclCommRegister", "ncclCommDeregister", "ncclCommWindowRegister", "ncclCommWindowDeregister")
MAKERS = ("ncclCommInitRankConfig", "ncclCommSplit")

_COUNT, _NOTE = struct.Struct("<Q"), struct.Struct(f"<{len(COUNTED)}Q")
_SLOTS = 4  # the note of step n is not touched while that of step n + 1 is written
_KILLED = 4096 - 1  # where the parent says that it has killed the second rank


class Notes:
    """What one rank notes of its steps, and hears of the other one, in memory that it shares with the parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def write(self, step: int, note: Sequence[int]) -> None:
        """Note numbers; how many steps there were comes last."""
        _NOTE.pack_into(self._memory, self._place(step), *note)
        _COUNT.pack_into(self._memory, 0, step + 1)

    def steps(self) -> int:
        """Return how many steps were noted."""
        return int(_COUNT.unpack_from(self._memory)[0])

    def last(self) -> list[int] | None:
        """Return the last note, if there is one."""
        steps = self.steps()
        return list(_NOTE.unpack_from(self._memory, self._place(steps - 1))) if steps else None

    def _place(self, step: int) -> int:
        return 64 + step % _SLOTS * _NOTE.size

    def say_killed(self) -> None:
        """Tell the other rank that it waits in vain."""
        self._memory[_KILLED] = 1

    def killed(self) -> bool:
        """Whether the second rank is gone."""
        return self._memory[_KILLED] == 1


class Alone(Exception):
    """The other rank was killed."""


class Rank:
    """One rank of one round: the same program on both."""

    def __init__(self, notes: Notes, seed: int) -> None:
        import tracehook

        from common import nccl_calls, start

        self.tracehook, self.calls = tracehook, nccl_calls
        tracehook.enable()
        self.notes, self.chance, self.step = notes, random.Random(seed), 0
        self.device = start()
        self.groups: list[dist.ProcessGroup] = [dist.group.WORLD]
        self.kept: list[torch.Tensor] = []
        self.note()

    def note(self) -> None:
        """Tell the parent what was counted up to here."""
        stats = torch.cuda.memory_stats(self.device)
        born, freed = stats["segment.all.allocated"], stats["segment.all.freed"]
        made, undone, windows, dropped = map(self.calls, CALLS)
        # With each window tracehook asks, by a local registration that it takes back, whether NCCL made a true one.
        counts = [born, freed, made - windows, undone - windows, windows, dropped, sum(map(self.calls, MAKERS))]
        counts += [born - freed, stats["reserved_bytes.all.current"]]
        self.notes.write(self.step, counts)
        self.step += 1

    def work(self) -> None:
        """Take one step after the other, until the end. The choices are the same on both ranks."""
        acts = [*2 * [self.grow, self.shrink, self.share, self.reduce], self.group]
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            self.chance.choice(acts)()
            self.note()
            if self.notes.killed():
                raise Alone

    def grow(self) -> None:
        """Allocate segments."""
        for _ in range(self.chance.randint(1, 6)):
            self.kept.append(torch.empty(self.chance.randint(20, 40) << 20, dtype=torch.uint8, device=self.device))

    def shrink(self) -> None:
        """Free a part of them."""
        for _ in range(min(len(self.kept), self.chance.randint(1, 8))):
            self.kept.pop(self.chance.randrange(len(self.kept)))
        torch.cuda.empty_cache()

    def share(self) -> None:
        """Make symmetric memory."""
        with self.tracehook.symmetric(self.chance.choice(self.groups)):
            self.kept.append(torch.empty(8 << 20, dtype=torch.float32, device=self.device))

    def reduce(self) -> None:
        """Call a collective, and do not wait in vain."""
        group = self.chance.choice(self.groups)
        tensor = (
            self.kept[-1] if self.kept and self.kept[-1].dtype == torch.float32 else torch.ones(1024).to(self.device)
        )
        work = dist.all_reduce(tensor, group=group, async_op=True)
        while not work.is_completed():
            if self.notes.killed():
                raise Alone
            time.sleep(0.0002)
        work.wait()  # or the tensor is held for a while, and its memory comes back at another time on each rank

    def group(self) -> None:
        """Make a group, or end one."""
        if len(self.groups) > 2:
            dist.destroy_process_group(self.groups.pop())
        else:
            self.groups.append(dist.new_group([0, 1], device_id=self.device))


def be_rank(rank: int, notes: Notes, seed: int, directory: Path) -> None:
    """Become a rank as a launcher would start it, and never return."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TEST_STORE": f"{directory}.store"}
    os.environ |= {"SYMM_REGISTER_LOG": str(directory), "TORCHELASTIC_RUN_ID": f"round-{seed}"}
    status = 0
    try:
        Rank(notes, seed).work()
    except Alone:
        status = 3
    except BaseException:
        traceback.print_exc()
        status = 4
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    os._exit(status)


def fork(rank: int, *about: object) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        be_rank(rank, *about)  # type: ignore[arg-type]
    return pid


def ended(pid: int, patience: float) -> int | None:
    """Wait for a process, not for ever; return how it ended."""
    deadline = time.monotonic() + patience
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, but not for ever."""
    deadline = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.0002)


def size_of(directory: Path, pid: int) -> int:
    """Return the size of a process's log, whatever it is called; -1: there is neither a log nor a ring."""
    sizes = [file.stat().st_size if file.suffix == ".jsonl" else 0 for file in directory.glob(f"*.{pid}.*")]
    return max(sizes, default=-1)


def wait(moment: str, chance: random.Random, note: Notes, directory: Path, pid: int) -> None:
    """Return at the moment at which `pid` is to be killed."""
    match moment:
        case "birth":  # of its log
            wait_until(lambda: size_of(directory, pid) >= 0)
            time.sleep(chance.uniform(0.0, 0.005))
        case "start":
            time.sleep(chance.uniform(0.0, 0.15))
        case "writing":
            wanted = chance.randint(1, STEPS)
            wait_until(lambda: note.steps() >= wanted)
            size = size_of(directory, pid)
            wait_until(lambda: size_of(directory, pid) > size)
            time.sleep(chance.uniform(0.0, 0.001))
        case "work":
            wanted = chance.randint(1, STEPS)
            wait_until(lambda: note.steps() >= wanted)
            time.sleep(chance.uniform(0.0, 0.02))


def one_round(number: int, seed: int, directory: Path) -> dict[str, object]:
    """Start two ranks, kill one at a moment that nobody chose, wait for the other; return what both had noted."""
    chance = random.Random(f"{seed} {number}")
    notes = [Notes(), Notes()]
    pids = [fork(rank, notes[rank], seed * 1000 + number, directory) for rank in (0, 1)]
    moment = chance.choice(MOMENTS)
    wait(moment, chance, notes[1], directory, pids[1])
    os.kill(pids[1], signal.SIGKILL)
    killed = ended(pids[1], LIMIT)
    notes[0].say_killed()
    other = ended(pids[0], PATIENCE)
    if other is None:
        os.kill(pids[0], signal.SIGKILL)
        other = ended(pids[0], LIMIT)
    return {
        "statuses": [other, killed],
        "moment": moment,
        "pids": pids,
        "steps": [note.steps() for note in notes],
        "noted": [note and dict(zip(COUNTED, note, strict=True)) for note in (each.last() for each in notes)],
    }


first_round, count, seed = map(int, sys.argv[1:4])
for number in range(first_round, first_round + count):
    told = one_round(number, seed, Path(sys.argv[4], f"{number:03}"))
    os.write(1, f"fact 0 {json.dumps({str(number): told})}\n".encode())

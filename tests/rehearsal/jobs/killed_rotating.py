"""One process, many times, that is killed while its log begins a new part.

Arguments: the first round, how many, a seed, the directory that gets a directory of logs for each round. The parent
kills it when it sees the new file; or else the process kills itself, at a line of Python that nobody chose. After each
step it notes in shared memory where its segments lie. The parent tells what was noted last.
"""

import atexit
import os
import random
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from witness import Notes, play

MOST = 60  # segments
LIMIT = 30.0  # seconds after which something is wrong
OWN_LIMIT = 3 * LIMIT  # of the process: whoever kills it is late, and it must not end by itself before
MOMENTS = ("line", "line", "line", "unfinished", "finished")
LINES = 90  # that a rotation has, about
PARTS = (2, 3, 8, 9, 10)  # of which the later ones throw older ones away
PAUSE = 0.001  # seconds; few crowds that the log would sum


class Executioner:
    """Kills this process at a line of a rotation of its log, on the log's thread. A trace function."""

    def __init__(self, rotation: int, line: int) -> None:
        self._rotations = rotation
        self._lines = line
        self._rotating = 0  # depth of calls

    def __call__(self, frame: FrameType, _: str, __: object) -> Any:
        """Look at a call."""
        if not self._rotating and frame.f_code.co_qualname != "Parts.rotate":
            return None
        self._rotating += 1
        if self._rotating == 1:
            self._rotations -= 1
        return self._within

    def _within(self, _: FrameType, event: str, __: object) -> Any:
        if event == "return":
            self._rotating -= 1
            if self._rotating == 0 and self._rotations == 0:
                self._lines = 0  # it had fewer lines
        elif event == "line" and self._rotations == 0:
            self._lines -= 1
        if self._lines <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._within


def work(notes: Notes, chance: random.Random) -> None:
    """Allocate and free segments, until the end."""
    import tracehook

    from common import MB, start

    tracehook.enable()
    device = start()
    kept: list[torch.Tensor] = []
    deadline = time.monotonic() + OWN_LIMIT
    step = 0
    while time.monotonic() < deadline:
        for _ in range(chance.randint(1, min(6, MOST - len(kept)))):
            kept.append(torch.empty(chance.randint(20, 40) * MB, dtype=torch.uint8, device=device))
        while len(kept) > MOST - 6 or (kept and chance.random() < 0.7):
            kept.pop(chance.randrange(len(kept)))
        torch.cuda.empty_cache()
        places = sorted(tensor.data_ptr() for tensor in kept)
        notes.write(step, [len(places), *places, *[0] * (MOST - len(places))])
        step += 1
        time.sleep(PAUSE)


def trace_rotations(executioner: Executioner) -> None:
    """Have the log's thread, of which `threading` does not know, traced while it begins a part."""
    from tracehook.log.parts import Parts

    rotate = Parts.rotate

    def traced(parts: Parts) -> None:
        sys.settrace(executioner)
        try:
            rotate(parts)
        finally:
            sys.settrace(None)

    Parts.rotate = traced  # type: ignore[method-assign,assignment]


def be_program(notes: Notes, seed: str, directory: Path, executioner: Executioner | None) -> None:
    """Become a process as a launcher would start it, and never return."""
    if executioner is not None:
        trace_rotations(executioner)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "SYMM_REGISTER_LOG": str(directory)}
    status = 0
    try:
        work(notes, random.Random(seed))
    except BaseException:
        traceback.print_exc()
        status = 4
    atexit._run_exitfuncs()
    os._exit(status)


def is_reached(moment: str, part: int, names: list[str]) -> bool:
    """Whether the log has come to the moment: what it begins is there, or is whole.

    Of that part or a later one, because a new file has its name for a millisecond, which a look can miss.
    """
    ends = {"unfinished": r"\.new", "finished": ""}
    found = [re.search(rf"\.part(\d+)\.jsonl{ends[moment]}$", name) for name in names]
    return any(int(match[1]) >= part for match in found if match)


def one_round(number: int, seed: int, directory: Path) -> dict[str, object]:
    """Start a process, kill it about where a part of its log begins; return what it had noted."""
    chance = random.Random(f"{seed} {number}")
    notes = Notes(1 + MOST)  # how many segments there are, and where they lie
    moment = chance.choice(MOMENTS)
    part = chance.choice(PARTS)
    own = Executioner(part - 1, chance.randint(1, LINES)) if moment == "line" else None
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        be_program(notes, f"{seed} {number}", directory, own)
    if own is None:
        deadline = time.monotonic() + LIMIT
        names: list[str] = []
        while not is_reached(moment, part, names) and time.monotonic() < deadline:
            names = [file.name for file in directory.glob("*")]
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    count, *places = notes.last() or [0]
    return {
        "moment": moment,
        "part": part,
        "status": os.waitstatus_to_exitcode(status),
        "noted": places[:count] if notes.steps() else None,
        "unfinished": [file.name for file in directory.glob("*.new")],
    }


play(one_round)

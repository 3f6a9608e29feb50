"""Random correct programs that end in random ways: their status, results and last words are those without tracehook.

HARMLESS_ENDS: how many; HARMLESS_FROM: the first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import endings
import pytest
from support.audits import Audit
from support.rehearsal import Rehearsal, rehearse, start_of

HERE = Path(__file__).parent
SEEDS = int(os.environ.get("HARMLESS_ENDS", "0"))
FIRST = int(os.environ.get("HARMLESS_FROM", "0"))
# Else the first ones, and those in which Control-C and threads that outlive the interpreter once failed.
PLAYED = range(FIRST, FIRST + SEEDS) if SEEDS else (*range(16), 57, 79, 119, 132)
RANKS = 2
# By way: the status that it has without tracehook, and what the audit says of it.
STATUS = {"return": 0, "exit": 0, "exec": 0, "status": 7, "text": 1, "raise": 1, "os._exit": 4, "thread": 3} | {
    "SIGTERM": 143,
    "SIGINT": 130,
    "SIGKILL": 137,
    "abort": 134,
}
FOUND = {
    "status": "exit-status",
    "text": "exit-status",
    "os._exit": "exit-status",
    "thread": "exit-status",
    "raise": "ended-by-exception",
    "SIGKILL": "no-end",
    "abort": "rank-failed",
    "SIGINT": "interrupted",
    "SIGTERM": "rank-failed",
}
# Where memory, pids and time stand in what torch and Python say.
DIFFERENT = re.compile(r"0x[0-9a-f]+|\d+")


def play(folder: Path, seed: int, log: Path | None) -> Rehearsal:
    """Play the program of a seed, with the hook or without."""
    folder.mkdir()
    job = start_of(folder, HERE / "ending_job.py")
    return rehearse(job, str(seed), *(() if log else ("plain",)), ranks=RANKS, log=log)


def words(run: Rehearsal) -> set[str]:
    """Return what was said on stderr, without numbers, and without the lines of the program in a stack trace."""
    lines = [DIFFERENT.sub("#", line).replace("[rank#]: ", "") for line in run.finished.err.splitlines()]
    return {line for line in lines if not line.startswith(" ") and ".cpp:#] Warning: " not in line}


@pytest.mark.parametrize("seed", PLAYED)
def test_a_program_ends_as_without_tracehook(tmp_path: Path, seed: int) -> None:
    """It ends in time, with its status, its results, and nothing more on stderr.

    torch itself may abort a program whose threads outlive the interpreter. Then it need not end so with tracehook.
    """
    way = endings.draw(seed).way
    plain = play(tmp_path / "plain", seed, None)
    run = play(tmp_path / "hooked", seed, tmp_path / "log")
    about = f"{endings.draw(seed)}\n{run.output}\n--- without tracehook: {plain.output}"
    assert run.finished.late <= plain.finished.late, about
    assert run.finished.orphans == 0, about
    assert run.status in (STATUS[way], plain.status), about
    if not run.status == plain.status == STATUS[way]:
        return
    assert [run.facts(rank) for rank in range(RANKS)] == [plain.facts(rank) for rank in range(RANKS)], about
    assert words(run) - words(plain) == set(), about
    found = Audit(tmp_path / "log", "--json").rules() - {"left-at-end"}  # of a program that destroys no group
    assert found == ({FOUND[way]} if way in FOUND else set()), about

"""Ranks that differ in what they registered with a communicator hear of it, and one change on all ranks is silent."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

LAST, RANKS = 2, 3
LACKS = f"rank {LAST} (global rank {LAST}) has no registrations with communicator"


def play(how: str, log: Path, faults: str = "") -> Rehearsal:
    """Run the job, which makes no collective while its ranks differ."""
    return rehearse("uneven.py", how, ranks=RANKS, log=log, faults=faults, timeout=120).assert_good()


def heard(run: Rehearsal) -> list[tuple[int, int, bool]]:
    """Return who logged that somebody differs: (rank, other rank, whether that one registers)."""
    return [
        (rank, event["other_rank"], event["registered"])
        for rank in range(RANKS)
        for event in run.events("communicator.uneven", rank)
    ]


@pytest.mark.parametrize(
    ("how", "faults", "why"),
    [
        ("one", "", "because they were switched off"),
        ("failed", "ncclCommRegister:fail@1=1#rank2", "because a registration failed"),
    ],
    ids=["switched off", "failed"],
)
def test_a_rank_without_registrations_is_named_on_all_others(tmp_path: Path, how: str, faults: str, why: str) -> None:
    """Each of the others logs one event and says one line: which rank, which group, why, and what to do."""
    run = play(how, tmp_path, faults)
    assert heard(run) == [(0, LAST, False), (1, LAST, False)], run.output
    lines = run.finished.lines(LACKS)
    assert len(lines) == RANKS - 1, run.output
    for line in lines:
        assert all(text in line for text in (f"group 0, {RANKS} ranks", why, "tracehook.disable() on all ranks")), line


def test_ranks_that_change_alike_hear_nothing(tmp_path: Path) -> None:
    """disable() on all ranks, some tenths of a second apart, is what the line asks for: nobody says anything."""
    run = play("all", tmp_path)
    assert heard(run) == [], run.output
    assert run.finished.lines("registrations with communicator") == []

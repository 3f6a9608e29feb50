"""Policy ``measured``: symmetric memory where the table says that it is faster, and the same answer on all ranks."""

import re
from pathlib import Path

import pytest
from support.audits import Audit
from support.symmetric import alike, play

JOB = "measured.py"
# Outside of the range, and without hints, the next policy answers: shared.
CHOSEN = {
    "graph 512": True,
    "graph 1024": True,
    "graph 1500": True,
    "graph 2048": False,
    "graph 4096": False,
    "graph 8192": True,
    "eager 512": True,
    "eager 1024": False,
    "eager 1500": False,
    "eager 2048": True,
    "eager 4096": True,
    "eager 8192": True,
    "scope": False,
    "scope without hints": True,
    "gathered 1024": True,
    "gathered 2048": False,
    "gathered 4096": True,
    "captured 1024": True,
    "captured 2048": False,
}
EVERYTHING = dict.fromkeys(CHOSEN, True)


def test_the_table_chooses_the_memory(tmp_path: Path) -> None:
    """By operation, size and way of calling."""
    run = play(JOB, "same", str(tmp_path), log=tmp_path / "log", SYMM_REGISTER_POLICY="measured").assert_good()
    assert alike(run, "found") == CHOSEN
    assert alike(run, "sum") == 3.0
    assert "tracehook:" not in run.finished.err
    assert Audit(tmp_path / "log").status == 0


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("differ", r"rank 0 .*tuning table [0-9a-f]{16}.* rank 1 .*tuning table [0-9a-f]{16}"),
        ("missing", r"rank 0 .*tuning table [0-9a-f]{16}.* rank 1 .*no tuning table"),
        ("elsewhere", r"made for 4 ranks on 1 host, this is a group of 2 ranks on 1 host: make one here"),
        ("machine", r"made elsewhere \(gpu NVIDIA A100, here .*; nccl 2\.20\.5, here 2\.30\.7\)"),
    ],
)
def test_all_ranks_fall_back_to_the_next_policy(tmp_path: Path, case: str, told: str) -> None:
    """Ranks that have different tables, or none, or one that was made elsewhere; one line says so.

    The version of NCCL is that of the library that is loaded: torch may have been compiled with another one.
    """
    log = tmp_path / "log"
    run = play(JOB, case, str(tmp_path), log=log, version="23007", SYMM_REGISTER_POLICY="measured").assert_good()
    assert alike(run, "found") == EVERYTHING, run.output
    assert alike(run, "sum") == 3.0
    lines = [line for line in run.finished.err.splitlines() if line.startswith("tracehook:")]
    said = [line for line in lines if re.search(told, line)]
    assert len(said) == 2, run.output  # one line a rank
    assert all("next policy answers" in line for line in said)

"""Random programs of several parallelisms in which one rank does wrong, rehearsed: whom the audit names.

FAULTY_RUNS is the number of seeds, FAULTY_FROM the first one, FAULTY_KINDS=more for the other faults.
``unit/test_faulty_programs.py`` plays very many.
"""

import json
import os
from pathlib import Path

import pytest
from audit.goldens import audit
from support.faulty import FAULTS, MORE_FAULTS, draw
from support.played import Played
from support.rehearsal import rehearse, rehearse_until, write_job

MOST = 4  # ranks
RULES = ("rank-missing", "calls-differ")
SEEDS = int(os.environ.get("FAULTY_RUNS", "0"))
FIRST = int(os.environ.get("FAULTY_FROM", "0"))
KINDS = os.environ.get("FAULTY_KINDS", "")
# A rank branches early; forgets a group; ends its loop; its device does not go on.
CHOSEN = (("", 8), ("", 7), ("", 17), ("more", 10))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kinds", "seed"), [(KINDS, seed) for seed in range(FIRST, FIRST + SEEDS)] if SEEDS else CHOSEN
)
def test_the_rank_that_does_wrong_is_named(kinds: str, seed: int, tmp_path: Path) -> None:
    """Or the calls cannot tell who it is, and the audit says so."""
    program = draw(seed, MOST, MORE_FAULTS if kinds else FAULTS)
    if program.culprit < 0 or not Played(program).stands:
        return  # the fault does no harm
    run = rehearse_until(
        6, "faulty_run.py", str(seed), str(MOST), *kinds.split(), ranks=program.ranks, log=tmp_path, timeout=100
    )
    text, told = audit(tmp_path)
    found = json.loads(told)
    last = text.splitlines()[-2]
    if not SEEDS or (found[0][0] in RULES and "cannot tell" not in last):
        assert found[0][0] in RULES
        assert found[0][2][0] == program.culprit, (program.told, text, run.output)
        assert "cannot tell" not in last


ENDS = """
import sys
import torch, torch.distributed as dist
from common import RANK, start, started
device = start(backend="cpu:gloo,cuda:nccl")
started()
dist.all_reduce(torch.ones(4, device=device))
if RANK == 1:
    sys.exit()
dist.all_reduce(torch.ones(4))
"""


def test_a_rank_that_ends_while_others_talk_to_it_by_gloo_is_named(tmp_path: Path) -> None:
    """Their exceptions follow from that."""
    rehearse_until(20, write_job(tmp_path / "job.py", ENDS), ranks=3, log=tmp_path / "log")
    text, told = audit(tmp_path / "log")
    errors = [found[:3] for found in json.loads(told) if found[1] == "error"]
    assert errors[0] == ["rank-missing", "error", [1, 0, 2]], text
    assert "rank 1 ended in order, after its 1st call of group 0" in text.splitlines()[-2]


@pytest.mark.parametrize(
    ("how", "named"), [("3", [1, 0, 2]), ("3 leave", [1, 0, 2]), ("0", None)], ids=["hung", "left", "at once"]
)
def test_groups_that_a_program_aborts_while_they_hang_are_not_clean(
    tmp_path: Path, how: str, named: list[int] | None
) -> None:
    """It goes on and ends in order, or by os._exit; but what hung for a moment only is no hang."""
    rehearse("aborts.py", *how.split(), ranks=3, log=tmp_path).assert_good()
    text, told = audit(tmp_path)
    if named is None:
        assert "rank-missing" not in text, text
        return
    assert json.loads(told)[0][:3] == ["rank-missing", "error", named], text
    assert "The program then aborted the communicator and went on." in text.splitlines()[-2]

"""A rank whose data loader does not go on is named as such, by the audit and by the line of its program."""

import json
import re
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import JOBS, rehearse_until

LOOP = 1 + (JOBS / "loads.py").read_text().splitlines().index(
    "    for batch in DataLoader(Numbers(), num_workers=1, prefetch_factor=1):"
)


def last_line(fault: str, log: Path) -> str:
    """Play a fault for some seconds, on two ranks that a launcher then ends; return the last line of the audit."""
    run = rehearse_until(4, "loads.py", fault, ranks=2, log=log, timeout=90, grace=1)  # a stuck worker never ends
    text, findings = audit(log)
    rule, _, ranks, _ = next(each for each in json.loads(findings) if each[1] == "error")
    assert (rule, ranks[0]) == ("ended-by-exception" if fault == "killed" else "rank-missing", 1), run.output + text
    return text.splitlines()[-2]


@pytest.mark.parametrize(("fault", "does"), [("stopped", "is stopped"), ("stuck", "runs")])
def test_a_rank_that_waits_for_its_data_loader_is_named_with_the_worker(fault: str, does: str, tmp_path: Path) -> None:
    """Whether somebody stopped the worker, or it does not come back from its data set."""
    said = last_line(fault, tmp_path)
    assert re.search(
        rf"; rank 1 waits for its data loader \(worker pid \d+ {does}\) at loads\.py:{LOOP} in train", said
    ), said


def test_a_worker_that_was_killed_is_named_by_the_error_of_its_rank(tmp_path: Path) -> None:
    """The error is of torch."""
    assert re.search(r"rank 1 ended by RuntimeError: DataLoader worker \(pid.* \d+\) ", last_line("killed", tmp_path))

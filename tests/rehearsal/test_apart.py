"""No rank waits alone: ranks that do not do the same hear in two seconds who did what, and can go on, or cannot.

SYMM_REGISTER_TIMEOUT is half a minute, so whoever is told earlier was answered. The cases are those of jobs/apart.py.
"""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import watched
from support.audits import Audit
from support.processes import SCRIPTS
from support.rehearsal import Rehearsal
from support.symmetric import alike, both, play

from tracehook.audit.live import Follower

SOON = 25.0  # seconds: two are promised, and a machine may be busy; a time-out would take 30


def case(name: str, log: Path, *broken: str, **env: Any) -> Rehearsal:
    """Run one case, in which these rules of NCCL are broken."""
    run = play("apart.py", name, log=log, **env)
    assert run.broken == list(broken), run.output
    assert not run.finished.late, run.output
    return run


def said(run: Rehearsal, rank: int) -> str:
    """Return what the case raised on a rank, soon."""
    facts = run.facts(rank)
    assert facts["error"] is not None, run.output
    assert facts["seconds"] < SOON, run.output
    return f"{facts['error'][0]}: {facts['error'][1]}"


def test_a_scope_and_a_collective_of_two_threads_may_come_in_any_order(tmp_path: Path) -> None:
    """Windows begin at one call on all ranks, so neither rank compares what the other does not, and sync agrees."""
    run = case("scope_beside_a_collective", tmp_path)
    assert both(run, "error") == [None, None], run.output
    assert both(run, "synced") == [None, None], run.output
    assert (alike(run, "sum"), alike(run, "later")) == (3.0, 3.0)


def test_a_rank_that_raises_inside_a_scope_is_named_at_once(tmp_path: Path) -> None:
    """The others hear why it does not come; the next scopes work on all. No place of a buffer is called wrong."""
    run = case("raises_inside", tmp_path)
    assert said(run, 1).startswith("ValueError"), run.output
    assert said(run, 0).startswith("RegistrationFailed"), run.output
    assert "rank 1 could not go on: ValueError: the request was cancelled" in said(run, 0)
    assert alike(run, "again") == [3.0, 3.0]
    assert both(run, "synced") == [None, None], run.output
    audit = Audit(tmp_path, "--json")
    assert audit.rules() == {"agreement-failed", "left-at-end"}
    assert "rank 0 gave up a registration of windows, to which rank 1 did not come" in audit.out


def test_a_rank_whose_wait_is_interrupted_is_named(tmp_path: Path) -> None:
    """The other rank, which was not there yet, hears who waits no longer, and is not blamed."""
    run = case("is_interrupted", tmp_path)
    assert said(run, 1).startswith("InterruptedError"), run.output
    assert "rank 1 ended its wait at 'register windows' by InterruptedError" in said(run, 0)
    assert alike(run, "again") == 3.0
    found = json.loads(Audit(tmp_path, "--json").out)["findings"]
    (one,) = [each for each in found if each["rule"] == "agreement-timeout"]
    assert one["ranks"] == [1]
    assert one["message"].endswith("rank 1 ended its own wait in an agreement by an exception, before all ranks came")


def test_an_allocation_that_fails_votes_no_at_once(tmp_path: Path) -> None:
    """The error on every other rank names the rank, the bytes and what was free there."""
    run = case("runs_out_of_memory", tmp_path)
    assert said(run, 1).startswith("OutOfMemoryError"), run.output
    assert "rank 1 could not go on: OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB" in said(run, 0)
    assert " are free on its device 1" in said(run, 0)
    assert both(run, "left") == [0, 0], "NCCL would find the error in its next collective, and fail"
    assert alike(run, "again") == 3.0


def test_a_rank_that_skips_a_scope_is_named_when_it_goes_on(tmp_path: Path) -> None:
    """Its next collective shows that it will not come; the collective is right, and so is the next scope."""
    run = case("skips", tmp_path)
    assert "rank 1 made call 1" in said(run, 0), run.output
    assert (alike(run, "sum"), alike(run, "again")) == (3.0, 3.0)
    assert both(run, "synced") == [None, None], run.output


def test_what_is_refused_in_a_group_of_nccl_is_told_at_its_end(tmp_path: Path) -> None:
    """After a call that fails torch leaves the group open: all later calls would wait in it, and sum up nothing."""
    run = case("differs_in_a_group", tmp_path)
    for rank in (0, 1):
        assert "the ranks differ at 'placement of all_reduce'" in said(run, rank), run.output
    assert (alike(run, "sum"), alike(run, "again")) == (3.0, [3.0, 3.0])


def test_ranks_that_wait_for_each_other_hear_it(tmp_path: Path) -> None:
    """One ends a scope before a collective, one after it: each hears which call the other made, and the group works."""
    run = case("opposite_order", tmp_path)
    assert "rank 1 made call 1" in said(run, 0) or "rank 1 did not come" in said(run, 0), run.output
    assert "rank 0 made call 2" in said(run, 1), run.output
    assert alike(run, "again") == 3.0


def test_there_is_never_a_shifted_sum(tmp_path: Path) -> None:
    """Where a rank may be inside NCCL, all further collectives are refused on all ranks, in one sentence."""
    run = case("goes_on_after_mixed", tmp_path, "W16")
    told = "some ranks are in a symmetric kernel of NCCL and the others are not"
    for facts in run.told:
        assert None not in facts["errors"], run.output
        assert facts["reached"][0] == 2, "one before, and the one that hangs"
    assert len(run.finished.lines(told)) >= 2, run.output
    assert len(run.finished.lines("aborting")) == 1, "the rank that is not inside NCCL"
    assert len(run.finished.lines("this rank waits in a symmetric kernel of NCCL, which no abort ends")) == 1


@pytest.mark.parametrize("handling", ["3", "0"])
def test_a_process_that_no_abort_frees_is_ended(tmp_path: Path, handling: str) -> None:
    """As torch ends it at its own time-outs, with the stacks of its threads; not where torch is told not to."""
    run = play("apart.py", "stands_in_a_kernel", log=tmp_path, TORCH_NCCL_ASYNC_ERROR_HANDLING=handling)
    is_left = handling == "0"
    assert len(run.finished.lines("end this process" if is_left else "this process ends in 2 s")) == 1, run.output
    assert ("(most recent call first):\n  File" in run.finished.err) != is_left, (
        run.output
    )  # torch writes traces of C++
    assert run.facts(0)["ended_by_itself"]
    assert run.facts(1).get("ended_by_itself", False) == is_left


def test_a_process_whose_abort_does_not_come_back_is_ended(tmp_path: Path) -> None:
    """So no rank stays for ever, also without a launcher that ends it with the others."""
    run = play("apart.py", "stands_in_an_abort", log=tmp_path)
    (line,) = run.finished.lines("torch's abort of the group does not come back: this process ends in 2 s")
    assert run.finished.err.count("most recent call first") >= 2, run.output
    assert [run.facts(rank).get("ended_by_itself") for rank in range(2)] == [None, None]
    assert "SYMM_REGISTER_GUARD=on" in line


def test_a_rank_that_was_late_to_the_first_scope_is_aborted_too(tmp_path: Path) -> None:
    """An alarm made its watch begin the rounds of the communicator, before its group did."""
    run = case("was_late_once", tmp_path)
    assert "rank 1 made all_reduce, send buffer outside of all windows" in said(run, 0), run.output
    assert len(run.finished.lines("aborting")) == 2, run.output


def test_a_swap_of_known_tensors_is_announced(tmp_path: Path) -> None:
    """The first call that differs is named on all ranks, and no further call is made."""
    run = case("swaps_what_is_known", tmp_path, "W16")
    for rank in (0, 1):
        text = said(run, rank)
        assert "the ranks used different memory at call 2: rank 0 made all_reduce, send buffer in window 0" in text
        assert "rank 1 made all_reduce, send buffer in window 1" in text
    assert len(run.events("communicator.refused")) == 2


def test_a_rank_that_does_not_come_to_a_scope_is_named_until_it_comes(tmp_path: Path) -> None:
    """No call into NCCL waits: the log of the rank that waits says so. `tracehook audit` and `watch` name the other."""
    log, go = tmp_path / "log", tmp_path / "go"
    seen: list[tuple[dict[str, Any], str]] = []

    def look() -> None:
        while not any('"agreement.waits"' in path.read_text() for path in log.glob("*.jsonl")):
            time.sleep(0.05)
        follower = Follower(log)
        while not follower.hangs:
            time.sleep(0.05)
            follower.look()
        found = subprocess.run([SCRIPTS / "tracehook", "audit", "--json", log], capture_output=True, text=True)
        seen.append((json.loads(found.stdout), watched.rendered(follower, 400)))
        go.touch()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    run = case("does_not_come_for_long", log, TEST_GO=str(go))
    assert alike(run, "sum") == 3.0
    ((found, picture),) = seen
    (one,) = found["findings"]
    assert (one["rule"], one["ranks"]) == ("rank-missing", [1, 0])
    assert "rank 0 waits in an agreement of tracehook, and rank 1 did not come there" in one["message"]
    assert "rank 0 waits for rank 1 in an agreement of tracehook" in picture
    assert Audit(log, "--json").rules() == {"left-at-end"}

"""Windows that programs register themselves: compared between the ranks before NCCL is called, and logged."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

TIMEOUT = 30  # seconds, of an agreement: every rank comes within it, also on a busy machine
SHORT = 2  # seconds, where a rank does not come
IN_VAIN = {"SYMM_REGISTER_TIMEOUT": str(SHORT)}
NEW = "23007"
REFUSED = 5  # ncclInvalidUsage


def play(tmp_path: Path, case: str, **env: str) -> Rehearsal:
    """Play one case on two ranks."""
    changes = {"SYMM_REGISTER_TIMEOUT": str(TIMEOUT), **env}
    return rehearse("windows_of_others.py", case, log=tmp_path, ranks=2, env=changes)


@pytest.mark.parametrize("case", ["alike", "no_store"])
def test_windows_that_are_alike_work(tmp_path: Path, case: str) -> None:
    """They are in the log with their order, also where the ranks have no store to compare them."""
    run = play(tmp_path, case, TRACEHOOK_EMU_NCCL_VERSION=NEW).assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["sums"] == [3.0, 3.0]
        made = run.events("register.window", rank)
        known = [(event["ordinal"], event["size"], event["observed"]) for event in made]
        assert known == [(0, 4 << 20, True), (1, 8 << 20, True)]
        ended = run.events("deregister.window", rank)
        assert [event["addr"] for event in ended] == [made[1]["addr"], made[0]["addr"]]
        assert len(run.events("agreement.reached", rank)) == (2 if case == "alike" else 0)
    assert ("have no store: call torch.distributed.init_process_group" in run.output) == (case == "no_store")


def test_windows_of_a_group_of_calls_are_compared(tmp_path: Path) -> None:
    """NCCL makes them when the group ends, so the log does not say whether there were any."""
    run = play(tmp_path, "grouped", TRACEHOOK_EMU_NCCL_VERSION=NEW).assert_good()
    for rank in (0, 1):
        assert (run.facts(rank)["sum"], run.facts(rank)["made"]) == (3.0, [True, True])
        made = run.events("register.window", rank)
        assert [(event["ok"], "effective" in event, event["size"]) for event in made] == [
            (True, False, 4 << 20),
            (True, False, 8 << 20),
        ]
        assert [event["addr"] for event in run.events("deregister.window", rank)] == [event["addr"] for event in made]
        assert len(run.events("agreement.reached", rank)) == 2


def test_windows_of_other_sizes_are_refused(tmp_path: Path) -> None:
    """Both ranks hear what differs, from NCCL's own function, and NCCL is not called."""
    run = play(tmp_path, "unequal").assert_good()
    for facts in run.told:
        assert (facts["result"], facts["called"]) == (REFUSED, 0)
        assert "rank 0 wants '4194304 bytes, flags 1'" in facts["said"]
        assert "rank 1 wants '8388608 bytes, flags 1'" in facts["said"]
    assert run.facts(0)["said"] == run.facts(1)["said"]


def test_a_rank_that_registers_nothing_is_named(tmp_path: Path) -> None:
    """The rank that registers hears who did not come, in time. So does the other, which asked for nothing so far."""
    run = play(tmp_path, "missing", **IN_VAIN).assert_good()
    facts = run.facts(0)
    assert (facts["result"], facts["called"]) == (REFUSED, 0)
    assert "rank 1 did not come" in facts["said"]
    assert SHORT <= facts["seconds"] < TIMEOUT
    line = facts["said"].removeprefix("tracehook: ")
    assert len(run.finished.lines(line)) == 2, run.output
    assert len(run.events("agreement.timeout", 1)) == 1


def test_a_difference_is_only_said(tmp_path: Path) -> None:
    """With SYMM_REGISTER_GUARD=watch the ranks say what differs, and NCCL is called."""
    run = play(tmp_path, "unequal", SYMM_REGISTER_GUARD="watch", TRACEHOOK_EMU_NCCL_VERSION=NEW)
    assert all(run.facts(rank)["called"] == 1 for rank in (0, 1))
    assert "registering all the same (SYMM_REGISTER_GUARD=watch)" in run.output


@pytest.mark.parametrize("case", ["swapped", "one_ordinary"])
def test_collectives_on_such_windows_are_compared(tmp_path: Path, case: str) -> None:
    """A collective whose buffers lie in different places is refused on both ranks, before NCCL is called."""
    run = play(tmp_path, case, TRACEHOOK_EMU_NCCL_VERSION=NEW).assert_good()
    for rank in (0, 1) if case == "swapped" else (0,):
        facts = run.facts(rank)
        assert facts["used"] == REFUSED, run.output
        assert ("in window 1" if case == "swapped" else "outside of all windows") in facts["why"]


@pytest.mark.parametrize(("guard", "result", "total"), [("on", REFUSED, [1.0, 2.0]), ("off", 0, [3.0, 3.0])])
def test_windows_that_no_collective_uses_are_compared_too(
    tmp_path: Path, guard: str, result: int, total: list[float]
) -> None:
    """A limit (docs/failure-modes.md): NCCL would make this call, as it does without the guard."""
    run = play(tmp_path, "for_kernels", SYMM_REGISTER_GUARD=guard, TRACEHOOK_EMU_NCCL_VERSION=NEW).assert_good()
    for rank in (0, 1):
        assert (run.facts(rank)["used"], run.facts(rank)["sum"]) == (result, total[rank])


def test_pools_that_torch_registers_are_compared(tmp_path: Path) -> None:
    """The ranks' pools have other sizes: both ranks say so on stderr, and torch raises."""
    run = play(tmp_path, "of_torch").assert_good()
    for rank in (0, 1):
        assert "invalid usage" in run.facts(rank)["raised"]
        assert run.facts(rank)["called"] == 0
    lines = run.finished.lines("rank 0 wants '33554432 bytes, flags 1'; rank 1 wants '67108864 bytes, flags 1'")
    assert len(lines) == 2


def test_a_group_and_its_communicator_share_their_agreements(tmp_path: Path) -> None:
    """One rank has asked about the group before, the other has not: both agree on a pool of torch's, and on a scope."""
    run = play(tmp_path, "with_a_scope", TRACEHOOK_EMU_NCCL_VERSION=NEW).assert_good()
    for rank, facts in enumerate(run.told):
        assert (facts["raised"], facts["called"]) == ("", 1), run.output
        assert (facts["sum"], facts["symmetric"]) == (3.0, True)
        made = [(event["ordinal"], event.get("observed", False)) for event in run.events("register.window", rank)]
        assert made == [(0, True), (1, False)]


def test_a_rank_whose_interpreter_is_busy_refuses_too(tmp_path: Path) -> None:
    """It cannot compare anything, so it does not go into NCCL alone; the other rank finds it missing."""
    run = play(tmp_path, "interpreter_is_busy", **IN_VAIN).assert_good()
    for rank in (0, 1):
        assert (run.facts(rank)["result"], run.facts(rank)["called"]) == (REFUSED, 0), run.output
    assert "held the interpreter for too long" in run.facts(0)["said"]
    assert "rank 0 did not come" in run.facts(1)["said"]


def test_a_window_inside_one_of_tracehook_is_refused(tmp_path: Path) -> None:
    """It would hide the memory behind it from the comparison of places, which goes on to find what differs."""
    run = play(tmp_path, "inside_a_scope").assert_good()
    for facts in run.told:
        assert (facts["result"], facts["called"], facts["symmetric"]) == (REFUSED, 0, [True, True]), run.output
        assert "the program registers a window of 2097152 bytes in memory of a scope" in facts["said"]
        assert "rank 0 wants 'send buffer in window 0 at byte 8388608'" in facts["raised"]
    assert len(run.finished.lines("the program registers a window of 2097152 bytes")) == 2, run.output

"""The device communicators of the emulated NCCL: all ranks make them, and windows stay while they live."""

from __future__ import annotations

from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

DEADLINE = 30  # seconds: every rank comes within it, also on a busy machine
SHORT = 3  # seconds, where a rank does not come
INVALID_USAGE, IN_PROGRESS = 5, 7


def play(scene: str, **env: str) -> Rehearsal:
    """Run one scene on two ranks."""
    changes = {"TRACEHOOK_EMU_WINDOW_TIMEOUT": str(DEADLINE), **env}
    return rehearse("device_communicators.py", scene, ranks=2, env=changes, timeout=40)


def assert_alike(run: Rehearsal, **facts: object) -> None:
    """Assert that both ranks told these facts, and that no rule was broken."""
    run.assert_good()
    for rank in (0, 1):
        assert {name: run.facts(rank).get(name) for name in facts} == facts, run.output


def assert_broken(run: Rehearsal, rule: str) -> None:
    """Assert that this rule was broken, no other, and that the status says so."""
    assert (run.broken, run.status) == ([rule], RULES_BROKEN), run.output


def test_device_communicators_of_all_ranks_are_made() -> None:
    """Several live at the same time; to destroy more than were made is refused."""
    run = play("right")
    assert_alike(run, sum=[3.0], dropped=[0, 0], window=0, again=INVALID_USAGE)


def test_a_rank_that_does_not_come_is_named() -> None:
    """A rank that creates one alone waits until the deadline, and the communicator has failed."""
    run = play("one_rank_only", TRACEHOOK_EMU_WINDOW_TIMEOUT=str(SHORT))
    assert_broken(run, "W18")
    assert run.facts(0)["result"] == 2
    assert run.facts(0)["waited"] >= SHORT
    assert "rank(s) 0 did come, rank(s) 1 did not" in run.output


def test_abort_ends_the_wait() -> None:
    """An abort from another thread ends the wait for the other ranks, and breaks no rule."""
    run = play("abort_ends_the_wait")
    run.assert_good()
    assert run.facts(0)["result"] == 3


def test_a_window_that_goes_first_breaks_a_rule() -> None:
    """NCCL takes the window away all the same."""
    run = play("window_goes_first")
    assert_broken(run, "W19")
    assert [run.facts(rank) for rank in (0, 1)] == [{"dropped": 0, "destroyed": 0}] * 2


def test_another_communicator_holds_no_window() -> None:
    """A device communicator holds the windows of its own communicator alone."""
    assert_alike(play("window_goes_beside"), dropped=0, destroyed=0)


def test_a_group_of_calls_makes_it_at_its_end() -> None:
    """Until then there is none to destroy."""
    assert_alike(play("in_a_group"), early=INVALID_USAGE, ended=0, destroyed=0)


def test_a_non_blocking_communicator_makes_it_later() -> None:
    """The communicator is in progress meanwhile."""
    assert_alike(play("non_blocking"), early=IN_PROGRESS, error=0, destroyed=0)


def test_the_end_of_the_communicator_ends_it() -> None:
    """What lives then breaks no rule, nor do the windows: NCCL takes both away itself."""
    assert_alike(play("left_to_the_end"), ended=True)


def test_there_is_none_without_symmetric_memory() -> None:
    """Such a communicator refuses it at once."""
    assert_alike(play("refused", TRACEHOOK_EMU_WINDOWS="null"), result=INVALID_USAGE)

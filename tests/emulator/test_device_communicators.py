"""The device communicators of the emulated NCCL: all ranks make them, and windows stay while they live."""

import pytest
from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

DEADLINE = 30  # seconds: every rank comes within it, also on a busy machine
SHORT = 3  # seconds, where a rank does not come
INVALID_USAGE, IN_PROGRESS = 5, 7


def play(scene: str, **env: str) -> Rehearsal:
    """Run one scene on two ranks."""
    changes = {"TRACEHOOK_EMU_WINDOW_TIMEOUT": str(DEADLINE), **env}
    return rehearse("device_communicators.py", scene, ranks=2, env=changes, timeout=40)


def assert_broken(run: Rehearsal, rule: str) -> None:
    """Assert that this rule was broken, no other, and that the status says so."""
    assert (run.broken, run.status) == ([rule], RULES_BROKEN), run.output


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


@pytest.mark.parametrize(
    ("sentence", "scene", "facts"),
    [
        (
            "Several live at the same time; to destroy more than were made is refused.",
            "right",
            {"sum": [3.0], "dropped": [0, 0], "window": 0, "again": INVALID_USAGE},
        ),
        ("One holds the windows of its own communicator alone.", "window_goes_beside", {"dropped": 0, "destroyed": 0}),
        ("A group makes it at its end.", "in_a_group", {"early": INVALID_USAGE, "ended": 0, "destroyed": 0}),
        ("A non-blocking one is in progress.", "non_blocking", {"early": IN_PROGRESS, "error": 0, "destroyed": 0}),
        ("NCCL's own end takes it and the windows away.", "left_to_the_end", {"ended": True}),
        ("Without symmetric memory it is refused.", "refused", {"result": INVALID_USAGE}),
    ],
)
def test_what_breaks_no_rule(sentence: str, scene: str, facts: dict[str, object]) -> None:
    """Both ranks tell these facts."""
    run = play(scene, **({"TRACEHOOK_EMU_WINDOWS": "null"} if scene == "refused" else {}))
    run.assert_good()
    for rank in (0, 1):
        assert {name: run.facts(rank).get(name) for name in facts} == facts, sentence

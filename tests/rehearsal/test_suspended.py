"""Communicators that are suspended and resumed (NCCL 2.29.7 and later), by the program or by `tracehook.pause()`.

NCCL keeps windows and local registrations over that, and gives back only memory of its own. So tracehook keeps them,
too. While a communicator is suspended, tracehook registers nothing with it, and refuses calls that use it.
"""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse

NEW, OLD = "23007", "22809"
SEGMENT = 24 << 20  # bytes of each tensor of the job
UNDOING = ("deregister.local", "deregister.window")
SENTENCE = "is suspended (ncclCommSuspend), and NCCL has given its memory back"


def play(log: Path, *arguments: str, version: str = NEW, **env: str) -> Rehearsal:
    """Run the job on two ranks with this version of NCCL. Every sum is right."""
    settings = {"TRACEHOOK_EMU_NCCL_VERSION": version, "SYMM_REGISTER_LOCAL": "all"} | env
    run = rehearse("suspended.py", *arguments, ranks=2, log=log, env=settings)
    assert run.status in (0, 86), run.output
    assert [run.facts(rank)["wrong"] for rank in range(2)] == [[], []], run.output
    return run


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_that_suspend_are_right(tmp_path: Path, seed: int) -> None:
    """Sums are right before and after, nothing is registered meanwhile, windows stay, and the audit has no finding."""
    run = play(tmp_path, str(seed), "25").assert_good()
    for rank, facts in enumerate(run.told):
        assert facts["suspensions"] > 0, run.output
        assert facts["born"] > 0, run.output
        assert facts["meanwhile"] == 0, run.output
        assert facts["held"] == facts["segments"] > 0, run.output
        suspended = [event["seq"] for event in run.events("communicator.suspend", rank)]
        resumed = [event["seq"] for event in run.events("communicator.resume", rank)]
        assert len(suspended) == len(resumed) == facts["suspensions"]
        windows = [event["seq"] for event in run.events("deregister.window", rank)]
        assert not [seq for seq in windows for a, b in zip(suspended, resumed, strict=True) if a < seq < b]
    Audit(tmp_path).expect(CLEAN)


def test_a_call_on_a_suspended_communicator_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Without that, a kernel of NCCL would use memory that is gone. After the resume all works.

    torch does not end a group of NCCL in which a call failed, and then all later calls of the thread would wait in it.
    """
    run = play(tmp_path, "used").assert_good()
    for facts in run.told:
        assert (facts["asleep"], facts["awake"]) == (True, False)
        assert {name for name, text in facts["said"].items() if SENTENCE not in text} == set(), facts["said"]


def test_without_the_flag_for_memory_nothing_is_suspended(tmp_path: Path) -> None:
    """NCCL only looks at that flag, so calls go on."""
    run = play(tmp_path, "flagless").assert_good()
    assert [run.facts(rank)["asleep"] for rank in range(2)] == [False, False]
    assert not list(run.events("communicator.suspend"))


def test_pause_and_resume_are_one_call_each(tmp_path: Path) -> None:
    """Memory that no tensor uses goes, and NCCL's; a second call changes nothing; the window of what stays is kept."""
    run = play(tmp_path, "paused").assert_good()
    for rank, facts in enumerate(run.told):
        assert facts["gained"] >= SEGMENT
        given = [event["released"] for event in run.events("communicator.suspend", rank)]
        assert len(given) == 1
        assert facts["gave_back"] == SEGMENT + given[0]
        assert facts["memory"]["suspended"] == given[0] > 0
        assert facts["memory"]["suspendable"] == 0 < facts["memory"]["persistent"]
        assert (facts["again"], facts["resumed"], facts["twice"]) == (0, 1, 0)
        assert (facts["asleep"], facts["awake"]) == (True, False)
        assert facts["windows"] == 2


def test_a_graph_that_holds_windows_outlives_a_suspend(tmp_path: Path) -> None:
    """Windows are not undone and made again, so the addresses in the graph stay right."""
    run = play(tmp_path, "graph").assert_good()
    for rank in range(2):
        assert run.facts(rank)["replayed"] == [3.0, 3.0]
        assert run.facts(rank)["windows"] == 1
        (suspended,) = run.events("communicator.suspend", rank)
        (resumed,) = run.events("communicator.resume", rank)
        undone = [event["seq"] for name in UNDOING for event in run.events(name, rank)]
        assert not [seq for seq in undone if suspended["seq"] < seq < resumed["seq"]]
    Audit(tmp_path).expect(CLEAN)


def test_pause_with_an_nccl_that_cannot_suspend_gives_back_what_it_can(tmp_path: Path) -> None:
    """One line says why the communicator stays, and the rest is the same."""
    run = play(tmp_path, "paused", version=OLD).assert_good()
    for facts in run.told:
        assert facts["gained"] >= facts["gave_back"] == SEGMENT
        assert (facts["asleep"], facts["resumed"], facts["memory"]) == (False, 0, None)
    assert "NCCL 2.28.9 cannot suspend communicators (2.29.7 is the first): tracehook.pause" in run.finished.err


def test_a_rank_that_pauses_alone_is_named(tmp_path: Path) -> None:
    """The ranks compare before NCCL waits for all, without a deadline: nobody is suspended, and the job goes on."""
    run = play(tmp_path, "alone").assert_good()
    for facts in run.told:
        assert facts["said"].startswith("RegistrationMismatch"), run.output
        assert facts["asleep"] is False

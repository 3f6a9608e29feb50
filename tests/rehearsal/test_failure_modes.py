"""Each way in which registration fails or goes wrong with NCCL alone (docs/failure-modes.md), and what happens here.

The cases are those of jobs/symmetric_cases.py; what the emulated NCCL does without tracehook is in
tests/emulator/test_windows.py.
"""

from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import NEW, OLD, SHORT, TIMEOUT, alike, assert_broken, both, communicator, play

MB = 1 << 20
NOTHING_REACHED = [0, 0, 0]  # all-reduces, window registrations, window deregistrations


def case(name: str, log: Path, *more: str, version: str = OLD, **env: Any) -> Rehearsal:
    """Run one case, and an ordinary collective after it."""
    return play("symmetric_cases.py", name, *(more or ("works",)), log=log, version=version, **env)


def assert_refused(run: Rehearsal, kind: str, *wanted: str) -> None:
    """Both ranks raised `kind`, in time, with all of `wanted` in the text, and nothing of it had reached NCCL."""
    run.assert_good()
    for facts in run.told:
        assert facts["error"] is not None, run.output
        assert facts["error"][0] == kind, run.output
        for text in (communicator(run), *wanted):
            assert text in facts["error"][1], run.output
        assert facts["reached"] == NOTHING_REACHED, run.output
        assert facts["seconds"] < TIMEOUT, run.output
    if kind == "DistBackendError":  # torch's own lines come before ours in it
        assert len(said_alone(run, wanted[0])) == 2, run.output
    assert both(run, "right") == [True, True], "the communicator is usable afterwards"


def said_alone(run: Rehearsal, text: str) -> list[str]:
    """Return the lines of stderr that begin as tracehook's do and have `text`: one for each refusal of a rank."""
    return [line for line in run.finished.lines(text) if line.startswith("tracehook: ")]


def assert_nothing_registered(run: Rehearsal) -> None:
    """No window was even asked for."""
    assert run.events("register.window") == [], run.output


def uses(run: Rehearsal, rank: int) -> list[tuple[Any, ...]]:
    """Return where the buffers of this rank's first uses lay, as its log has it."""
    return [
        (event["operation"], event["send_window"], event["send_offset"], event["receive_window"])
        for event in run.events("placement.first_use", rank)
    ]


# --- the wrong sum ---


def test_unverified_swap_is_silent_but_in_the_logs(tmp_path: Path) -> None:
    """With SYMM_REGISTER_GUARD=off tensors in opposite order give a wrong sum and no error; the ranks' logs show it."""
    run = case("swapped_unseen", tmp_path, "leave", SYMM_REGISTER_GUARD="off")
    assert_broken(run, "W16")
    assert both(run, "wrong") == [[201.0, 1.0], [2.0, 102.0]], "should be 3"
    assert uses(run, 0) == [("all_reduce", 0, 0, 0)]
    assert uses(run, 1) == [("all_reduce", 1, 0, 1)]


def test_swap_between_known_tensors_is_found_by_sync(tmp_path: Path) -> None:
    """A swap between tensors that were used alike before gives a wrong sum, and the next sync says so on all ranks."""
    run = case("swapped_when_known", tmp_path, "leave")
    assert_broken(run, "W16")
    assert alike(run, "before") == [3.0, 3.0]
    assert both(run, "agreed") == [None, None]
    assert both(run, "wrong") == [201.0, 2.0]
    kind, text = alike(run, "found")
    assert kind == "RegistrationMismatch"
    assert "rank 0 wants '3 collectives with windows so far, placements" in text
    assert "rank 1 wants '3 collectives with windows so far, placements" in text


# --- sizes ---


def test_unequal_counts_are_refused(tmp_path: Path) -> None:
    """64 elements on rank 0 and 60 on rank 1, at one place: both ranks raise, and NCCL is not called."""
    run = case("unequal_counts", tmp_path)
    wanted = "rank 0 wants '256 bytes, float32, sum'", "rank 1 wants '240 bytes, float32, sum'"
    assert_refused(run, "DistBackendError", *wanted)


@pytest.mark.parametrize(("name", "others"), [("other_type", "float16, sum"), ("other_reduction", "float32, max")])
def test_another_type_or_reduction_is_refused(tmp_path: Path, name: str, others: str) -> None:
    """Of as many bytes at one place: NCCL would return a wrong result without a word."""
    run = case(name, tmp_path)
    assert_refused(run, "DistBackendError", " bytes, float32, sum'; rank 1 wants ", f" bytes, {others}'")


# --- ranks that are missing ---


@pytest.mark.parametrize(("name", "missing"), [("missing_rank", 1), ("missing_leader", 0)])
def test_missing_rank_is_named(tmp_path: Path, name: str, missing: int) -> None:
    """A rank that does not come to the end of the scope is named in time; when it comes, it is told that it is late."""
    run = case(name, tmp_path)
    assert_refused(run, "RegistrationTimeout", f"rank {missing} did not come within the {SHORT} s")
    assert_nothing_registered(run)
    assert both(run, "windows") == [0, 0]
    assert run.facts(1 - missing)["seconds"] >= SHORT
    assert f"this rank (rank {missing}) came late itself" in run.facts(missing)["error"][1]
    for rank in (0, 1):  # who hears of it before it comes, notes that too
        assert {event["missing_rank"] for event in run.events("agreement.timeout", rank)} == {missing}


# --- buffers in different places ---


def test_mixed_placement_ends_the_communicator_on_all_ranks(tmp_path: Path) -> None:
    """A rank whose buffer lies in no window goes to NCCL unasked; a rank with a window hears so, and makes no call."""
    run = case("mixed_placement", tmp_path, "leave")
    assert run.broken == [], run.output
    facts = run.facts(0)
    told = (
        "the ranks differ at call 1: rank 1 made all_reduce, send buffer outside of all windows, receive buffer "
        "outside of all windows; rank 0 wants all_reduce, send buffer in window 0 at byte 0, receive buffer in window "
        "0 at byte 0. rank 1 may be inside NCCL"
    )
    assert facts["error"][0] == "DistBackendError", run.output
    assert told in facts["error"][1], run.output
    assert facts["seconds"] < TIMEOUT, "an answer, not a time-out"
    assert both(run, "reached") == [NOTHING_REACHED, [1, 0, 0]]
    assert len(said_alone(run, told)) == 2, "both ranks say it on stderr, once"
    assert len(run.events("communicator.refused")) == 2


def test_buffer_across_the_end_of_a_window_is_refused(tmp_path: Path) -> None:
    """A buffer that begins in a window and ends outside is refused, though NCCL looks at its beginning only."""
    run = case("overrun", tmp_path)
    assert_refused(run, "DistBackendError", "begins in a window", "ends outside it")
    assert alike(run, "reason") == "outside"


# --- captures ---


@pytest.mark.parametrize("version", [OLD, NEW])
def test_nothing_is_registered_during_a_capture(tmp_path: Path, version: str) -> None:
    """A scope in a capture does not break it: its memory waits for sync, and the replay is right before and after."""
    run = case("capture", tmp_path, version=version).assert_good()
    assert both(run, "error") == [None, None]
    assert alike(run, "sum") == 3.0
    assert (alike(run, "reason"), alike(run, "later")) == ("deferred", "symmetric")
    assert (alike(run, "before"), alike(run, "synced"), alike(run, "after")) == (1, 1, 2)
    assert [event["segments"] for event in run.events("window.defer")] == [1, 1]
    for rank in (0, 1):
        names = [event["event"] for event in run.log(rank).events]
        at = names.index("window.defer")
        assert "register.window" in names[at:], "after the capture"
        assert "register.local" in names, "which is allowed during one"


def test_graph_replays_with_windows(tmp_path: Path) -> None:
    """Captured symmetric memory is right at each replay, pinned until release_graphs, and then given back by trim."""
    run = case("graph_replay", tmp_path).assert_good()
    assert alike(run, "reason") == "symmetric"
    assert alike(run, "sums") == [3.0, 6.0, 9.0]
    assert (alike(run, "pinned"), alike(run, "unpinned")) == (1, 0)
    assert alike(run, "given_back") >= 32 * MB


# --- deregistering, freeing, ending ---


def test_trim_of_one_rank_gives_nothing_back(tmp_path: Path) -> None:
    """Only rank 0 trims: it raises in time, no window goes, the next tensors lie alike, a trim of all works."""
    run = case("trim_alone", tmp_path)
    assert_refused(run, "RegistrationTimeout", f"rank 1 did not come within the {SHORT} s", "'trim'")
    assert (alike(run, "windows"), alike(run, "sum"), alike(run, "again")) == (3, 3.0, 3.0)
    assert (alike(run, "given_back"), alike(run, "left")) == (34 * MB, 1)


def test_trim_drops_what_is_unused_on_all_ranks_only(tmp_path: Path) -> None:
    """Ranks with different unused segments keep both windows, until the segments are unused everywhere."""
    run = case("trim_different", tmp_path).assert_good()
    assert both(run, "error") == [None, None]
    assert (alike(run, "windows"), alike(run, "left"), alike(run, "given_back")) == (2, 0, 64 * MB)


def test_freed_memory_keeps_its_window(tmp_path: Path) -> None:
    """A segment that torch gives back stays mapped and registered, and an equal request gets it again."""
    run = case("freed_while_registered", tmp_path).assert_good()
    assert (alike(run, "retired"), alike(run, "same"), alike(run, "sum")) == (32 * MB, True, 3.0)
    assert (alike(run, "before"), alike(run, "after")) == (1, 1)
    assert len(run.events("register.window", 0)) == 1


def test_no_call_on_a_communicator_that_ended(tmp_path: Path) -> None:
    """After an abort the program allocates and frees as before, and nothing is deregistered any more."""
    run = case("abort_with_windows", tmp_path).assert_good()
    assert both(run, "error") == [None, None]
    for rank in (0, 1):
        names = [event["event"] for event in run.log(rank).events]
        after = names[names.index("communicator.abort") :]
        assert not {"register.local", "deregister.local", "register.window"} & {*after}, run.output
        assert "deregister.window" not in names, run.output
    assert (alike(run, "symmetric"), alike(run, "windows"), alike(run, "alive")) == (False, 0, True)

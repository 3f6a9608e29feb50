"""Symmetric memory in code for torch.compile: what stays in windows, and what is left to Python."""

import pytest
from support.audits import Audit
from support.rehearsal import Rehearsal
from support.symmetric import alike, both, play


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run all functions in one job, since a compiler takes seconds to load; the audit finds the one switch, no more.

    The first one shows what holds before anything was traced, and the second one counts warnings that come once.
    """
    log = tmp_path_factory.mktemp("compiled")
    cases = ("layer", "scope", "collectives", "own_operator", "captured", "switched_off")
    found = play("compiled.py", *cases, log=log).assert_good()
    assert Audit(log, "--json").rules() == {"switched-off"}
    return found


def placements(found: Rehearsal, case: str, operation: str) -> set[tuple[int | None, int | None]]:
    """Return the windows from which, and into which, rank 0 made this collective in the group of a case."""
    events = [event for event in found.events("placement.first_use", 0) if event["operation"] == operation]
    where = alike(found, f"communicator of {case}")
    return {(event["send_window"], event["receive_window"]) for event in events if event["comm"] == where}


def test_a_layer_in_one_graph_is_reduced_in_a_window(run: Rehearsal) -> None:
    """Whatever the batch, a compiled layer's output is symmetric, and NCCL reduced it there; first use in a trace."""
    assert alike(run, "loaded") is False
    assert alike(run, "outputs") == [[[rows, 8], True] for rows in (4, 8, 12)]
    assert placements(run, "layer", "all_reduce") == {(0, 0)}


@pytest.mark.parametrize(
    ("name", "rows", "symmetric"),
    [
        ("reduced", [3.0] * 4, True),
        ("maximum", [2.0] * 4, True),
        ("gathered", [1.0] * 3 + [2.0] * 3, True),
        ("unequal", [1.0] * 3 + [2.0] * 6, False),
        ("scattered", [2.0] * 2, True),
        ("sized", [3.0] * 2, True),
    ],
)
def test_a_collective_in_one_graph(run: Rehearsal, name: str, rows: list[float], symmetric: bool) -> None:
    """It gives what it gives without a compiler: the right rows, symmetric where the ranks' sizes are equal."""
    assert alike(run, name) == [rows, symmetric]


def test_parts_of_a_gathered_tensor_in_one_graph(run: Rehearsal) -> None:
    """all_gather gives a list of symmetric parts."""
    assert alike(run, "parts") == [[[1.0] * 3, True], [[2.0] * 3, True]]


def test_an_operator_of_the_program(run: Rehearsal) -> None:
    """What it makes with tracehook.empty, and reduces in place, is symmetric: a compiler does not look into it."""
    assert alike(run, "layer") == [[3.0] * 8, True]
    # What writes in place in a trace writes into memory of the compiler: docs/symmetric.md says so.
    assert alike(run, "in_place") is False


def test_a_scope_is_left_to_python(run: Rehearsal) -> None:
    """The graph ends before it, what follows is compiled again, and the compiler looks at nothing of tracehook."""
    assert alike(run, "results") == [[[3.0] * 4, True]] * 2
    assert alike(run, "graphs") == [["reshape"], ["getattr"], ["copy_"], ["reshape"]]
    assert alike(run, "warnings") == []
    assert placements(run, "scope", "all_reduce") == {(0, 0)}

    for text in both(run, "refused"):  # with fullgraph=True
        assert "call tracehook.empty or tracehook.all_reduce, which are operators" in text


def test_a_graph_follows_the_switch(run: Rehearsal) -> None:
    """Between tracehook.disable() and enable() the same graph gives ordinary memory; its sums are always right."""
    assert alike(run, "first") == [[3.0] * 4, True]
    assert alike(run, "second") == [[3.0] * 8, False]
    assert alike(run, "third") == [[3.0] * 12, True]


def test_a_compiled_layer_in_a_cuda_graph(run: Rehearsal) -> None:
    """After a reservation on the stream of the capture its output is symmetric, and each replay is right."""
    assert alike(run, "replays") == [[[3.0] * 4, True], [[20.0] * 4, True]]

"""Symmetric memory in code for torch.compile: what stays in windows, and what is left to Python."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal
from support.symmetric import alike, both, play


def run(case: str, log: Path) -> Rehearsal:
    """Run one function of the job; it ends well, and the audit finds nothing."""
    found = play("compiled.py", case, log=log).assert_good()
    Audit(log).expect(CLEAN)
    return found


def placements(found: Rehearsal, operation: str) -> set[tuple[int | None, int | None]]:
    """Return the windows from which, and into which, rank 0 made this collective."""
    events = [event for event in found.events("placement.first_use", 0) if event["operation"] == operation]
    return {(event["send_window"], event["receive_window"]) for event in events}


def test_a_layer_in_one_graph_is_reduced_in_a_window(tmp_path: Path) -> None:
    """Whatever the batch, a compiled layer's output is symmetric, and NCCL reduced it there; first use in a trace."""
    found = run("layer", tmp_path)
    assert alike(found, "loaded") is False
    assert alike(found, "outputs") == [[[rows, 8], True] for rows in (4, 8, 12)]
    assert placements(found, "all_reduce") == {(0, 0)}


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run all collectives once."""
    return run("collectives", tmp_path_factory.mktemp("compiled"))


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
def test_a_collective_in_one_graph(collectives: Rehearsal, name: str, rows: list[float], symmetric: bool) -> None:
    """It gives what it gives without a compiler: the right rows, symmetric where the ranks' sizes are equal."""
    assert alike(collectives, name) == [rows, symmetric]


def test_parts_of_a_gathered_tensor_in_one_graph(collectives: Rehearsal) -> None:
    """all_gather gives a list of symmetric parts."""
    assert alike(collectives, "parts") == [[[1.0] * 3, True], [[2.0] * 3, True]]


def test_an_operator_of_the_program(tmp_path: Path) -> None:
    """What it makes with tracehook.empty, and reduces in place, is symmetric: a compiler does not look into it."""
    found = run("own_operator", tmp_path)
    assert alike(found, "layer") == [[3.0] * 8, True]
    # What writes in place in a trace writes into memory of the compiler: docs/symmetric.md says so.
    assert alike(found, "in_place") is False


def test_a_scope_is_left_to_python(tmp_path: Path) -> None:
    """The graph ends before it, what follows is compiled again, and the compiler looks at nothing of tracehook."""
    found = run("scope", tmp_path)
    assert alike(found, "results") == [[[3.0] * 4, True]] * 2
    assert alike(found, "graphs") == [["reshape"], ["getattr"], ["copy_"], ["reshape"]]
    assert alike(found, "warnings") == []
    assert placements(found, "all_reduce") == {(0, 0)}

    for text in both(found, "refused"):  # with fullgraph=True
        assert "call tracehook.empty or tracehook.all_reduce, which are operators" in text


def test_a_graph_follows_the_switch(tmp_path: Path) -> None:
    """Between tracehook.disable() and enable() the same graph gives ordinary memory; its sums are always right."""
    found = play("compiled.py", "switched_off", log=tmp_path).assert_good()
    assert alike(found, "first") == [[3.0] * 4, True]
    assert alike(found, "second") == [[3.0] * 8, False]
    assert alike(found, "third") == [[3.0] * 12, True]


def test_a_compiled_layer_in_a_cuda_graph(tmp_path: Path) -> None:
    """After a reservation on the stream of the capture its output is symmetric, and each replay is right."""
    found = run("captured", tmp_path)
    assert alike(found, "replays") == [[[3.0] * 4, True], [[20.0] * 4, True]]

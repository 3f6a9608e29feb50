"""CUDA graphs in a rehearsal: what is captured, repeated, and refused as an H200 with CUDA 13 was seen to refuse it."""

from typing import Any

import pytest
from support.rehearsal import rehearse

UNSUPPORTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream"
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"
UNJOINED = "CUDA error: capturing stream has unjoined work"
EVERY_MODE = ("global", "thread_local", "relaxed")


def run(job: str, *arguments: str, ranks: int = 0) -> list[dict[str, Any]]:
    """Return what each rank of a job told that ended well."""
    rehearsal = rehearse(job, *arguments, ranks=ranks)
    rehearsal.assert_good()
    return [rehearsal.facts(rank) for rank in range(max(ranks, 1))]


@pytest.fixture(scope="module")
def contract() -> dict[str, Any]:
    """Return what the job told that calls the emulated runtime itself."""
    return run("graph_contract.py")[0]


def test_a_graph_repeats_its_copies() -> None:
    """Capturing copies does nothing; each replay copies what the inputs hold by then, in order and through a fork."""
    facts = run("graphs.py", "copies")[0]
    assert facts["capturing"] == [True, False]
    assert facts["only_captured"] == 0
    assert facts["seen"] == [[5, 5, 0], [6, 6, 0], [7, 7, 0]]
    assert facts["host"] == 7
    assert facts["late"], "an event recorded by the launch is passed after it"


def test_a_graph_keeps_its_memory_until_it_goes() -> None:
    """A training step is captured and replayed; the pool of the graph is given back with the graph, not before."""
    facts = run("graphs.py", "surroundings")[0]
    assert [text.startswith("The CUDA Graph is empty") for text in facts["warned"]] == [True]
    assert facts["kept"] == 0
    assert facts["released"] >= 64 << 20
    assert facts["freed"]


def test_a_capture_refuses_what_would_break_it() -> None:
    """An unsafe call is refused, its capture fails, and the process captures and replays the next graph."""
    facts = run("graphs.py", "unsafe")[0]
    for mode in EVERY_MODE:
        said = {name: heard[mode] for name, heard in facts["said"].items()}
        assert said["synchronize"] == [UNSUPPORTED, INVALIDATED]
        assert said["item"] == [UNSUPPORTED, INVALIDATED]
        assert said["captured"] == [CAPTURED_EVENT, INVALIDATED]
        assert said["wait"] == [ISOLATION, INVALIDATED]
        assert said["join"] == [UNJOINED]
        assert said["query"] == ([] if mode == "relaxed" else [UNSUPPORTED, INVALIDATED])
    assert facts["afterwards"] == 8


def test_a_graph_repeats_its_collectives() -> None:
    """Each replay reduces and gathers what the ranks hold by then, between collectives that are not captured."""
    for facts in run("graph_collectives.py", ranks=2):
        assert facts["captured"] == [0, 0]
        assert facts["seen"] == [[3 * step] * 4 + [1] for step in (1, 2, 3)]
        assert facts["again"] == [9, 9]


ELSEWHERE = ["host elsewhere", "work elsewhere", "host elsewhere"]
CONTRACT: dict[str, dict[str, Any]] = {
    "only the captured stream says that it is; what it is given runs per launch, in order, on another thread": {
        "captures": [1, 0, 0], "captured": [], "after": [0, 0], "nodes": 3, "at_launch": ["launched"],
        "later": ELSEWHERE,
    },
    "a second launch is noted at once, but its work waits for the first launch, also on another stream": {
        "held": [600, 600], "started": ["launched", "launched"], "both": ELSEWHERE * 2,
    },
    "what a graph holds lives as long as the graph or an instance of it; then its function is called, once": {
        "too_many": 1, "with_instance": [], "without": ["gone", "gone"], "twice": 1,
    },
    # By mode: the own thread, then others.
    "a capture binds its own thread, and a global one binds other threads of mode global, as CUDA has it": {
        "modes": [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], "malloc": [True, True], "relaxed": [2, 0],
    },
    "of a spoilt capture what comes after the fault is dropped at once, the rest at the end, which names the fault": {
        "refused": ["dropped"], "spoilt": [1, True], "dropped": ["dropped"],
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", CONTRACT)
def test_the_contract(contract: dict[str, Any], sentence: str) -> None:
    """As the sentence says."""
    assert {name: contract[name] for name in CONTRACT[sentence]} == CONTRACT[sentence]


def test_recorded_work_is_dropped_once(contract: dict[str, Any]) -> None:
    """It goes with the last instance of its graph, or after the launch that is under way then."""
    assert contract["kept"] == []
    assert contract["in_flight"] == ["launched"]
    assert contract["gone"].count("dropped elsewhere") == 1
    assert contract["gone"].index("work elsewhere") < contract["gone"].index("dropped elsewhere")
    assert contract["again"] == 1, "an instance is destroyed once"


def test_work_that_cannot_repeat_spoils_a_capture(contract: dict[str, Any]) -> None:
    """It is done once, so that nobody waits for it in vain, and the capture fails."""
    assert contract["unrepeatable"]
    assert contract["once"] == ["work elsewhere"]

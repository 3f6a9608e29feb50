"""CUDA graphs in a rehearsal: what is captured, what a launch repeats, and what a capture forbids.

The refusals are those that a job of the same calls was seen to get from an H200 with CUDA 13.
"""

from __future__ import annotations

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


def test_recorded_work_waits_for_launches(contract: dict[str, Any]) -> None:
    """Only the captured stream says that it is; what it is given runs per launch, in order, on another thread."""
    assert contract["captures"] == [1, 0, 0]
    assert contract["captured"] == []
    assert contract["after"] == [0, 0]
    assert contract["nodes"] == 3
    assert contract["at_launch"] == ["launched"]
    assert contract["later"] == ["host elsewhere", "work elsewhere", "host elsewhere"]


def test_launches_of_one_instance_follow_each_other(contract: dict[str, Any]) -> None:
    """A second launch is noted at once, but its work waits for the first launch, also on another stream."""
    assert contract["held"] == [600, 600]
    assert contract["started"] == ["launched", "launched"]
    assert contract["both"] == ["host elsewhere", "work elsewhere", "host elsewhere"] * 2


def test_recorded_work_is_dropped_once(contract: dict[str, Any]) -> None:
    """It goes with the last instance of its graph, or after the launch that is under way then."""
    assert contract["kept"] == []
    assert contract["in_flight"] == ["launched"]
    assert contract["gone"].count("dropped elsewhere") == 1
    assert contract["gone"].index("work elsewhere") < contract["gone"].index("dropped elsewhere")
    assert contract["again"] == 1, "an instance is destroyed once"


def test_a_graph_keeps_objects_of_the_program(contract: dict[str, Any]) -> None:
    """What a graph holds lives as long as the graph or an instance of it, and then its function is called, once."""
    assert contract["too_many"] == 1, "more than there are cannot be given back"
    assert contract["with_instance"] == []
    assert contract["without"] == ["gone", "gone"]
    assert contract["twice"] == 1, "it is no object any more"


def test_the_modes_decide_who_may_disturb(contract: dict[str, Any]) -> None:
    """A capture binds its own thread, and a global one binds other threads of mode global, as CUDA has it."""
    own_thread_then_others_by_mode = contract["modes"]
    assert own_thread_then_others_by_mode == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert contract["malloc"] == [True, True]
    assert contract["relaxed"] == [2, 0]


def test_a_spoilt_capture_drops_what_it_holds(contract: dict[str, Any]) -> None:
    """What comes after the fault is dropped at once, the rest at the end, which names the fault."""
    assert contract["refused"] == ["dropped"]
    assert contract["spoilt"] == [1, True]
    assert contract["dropped"] == ["dropped"]


def test_work_that_cannot_repeat_spoils_a_capture(contract: dict[str, Any]) -> None:
    """It is done once, so that nobody waits for it in vain, and the capture fails."""
    assert contract["unrepeatable"]
    assert contract["once"] == ["work elsewhere"]

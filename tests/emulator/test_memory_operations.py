"""Streams of a rehearsal that write words of memory and wait for them: cuStreamWriteValue32 and its kin.

Times are compared with limits that a busy machine keeps; they are a hundredth of that on an idle one.
"""

from __future__ import annotations

from typing import Any

from support.rehearsal import rehearse

INVALID_VALUE, NOT_INITIALIZED, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 1, 3, 400, 500, 600, 801


def run(scene: str) -> dict[str, Any]:
    """Return what one scene told."""
    rehearsal = rehearse("memory_operations.py", scene)
    rehearsal.assert_good()
    return rehearsal.facts()


def test_a_wait_ends_when_its_condition_holds() -> None:
    """Not before: at least (cyclically), equal, a common bit, a bit that neither has. At once if it holds already."""
    held = run("conditions")["held"]
    assert len(held) == 7
    assert all(held.values()), held


def test_a_wait_holds_up_its_stream_only() -> None:
    """What comes behind it, events too, waits; the caller and other streams do not, unless the default stream waits."""
    facts = run("order")
    assert facts["waiting"] == [True, NOT_READY, 0], "the calls came back, and the stream waited"
    assert facts["other"] == [0, 1]
    assert facts["after"] == [0, 0, 2, 3], "the copy came after the write that released it"
    assert facts["batch"] == [[1, True], 2]
    assert facts["default"] == [True, 1]


def test_the_cpu_ends_a_wait() -> None:
    """A word of page-locked memory that the CPU writes ends the wait soon."""
    facts = run("by_cpu")
    assert facts["turns"] == 200
    assert facts["median"] < 0.02


def test_processes_wait_for_each_other() -> None:
    """Two processes take turns through shared memory, and see what was written before; a long wait needs little CPU."""
    facts = run("processes")
    assert facts["right"] == 200
    assert facts["median"] < 0.02
    assert facts["used"] < 0.25
    assert facts["status"] == 0


def test_a_process_ends_although_a_stream_waits() -> None:
    """A wait that nobody will end does not keep the process from ending."""
    assert run("deserted")["waits"]


def test_a_graph_waits_at_each_launch() -> None:
    """Capturing does nothing; each launch comes back, then it writes, waits for another stream, and copies."""
    facts = run("captured")
    assert facts["nodes"] == 4
    assert facts["captured"] == [0, 0]
    assert facts["seen"] == [[True, step, 2, 0] for step in (5, 6, 7)]


def test_every_way_leads_to_the_functions() -> None:
    """They are found with and without a suffix, by linker, driver and runtime; others are not found."""
    facts = run("names")
    assert facts["done"] == [True] * 10
    assert facts["attributes"] == [0, 1]
    assert facts["missing"] == [NOT_FOUND, 1, 0, 1, None]


def test_wrong_words_are_refused() -> None:
    """Unaligned words, memory that no device reaches, unknown flags and dead streams are errors; nothing is done."""
    facts = run("refused")
    for kind in ("unaligned", "ordinary", "beyond", "flags"):
        assert facts[kind] == [INVALID_VALUE] * 2, kind
    assert facts["batch"] == [INVALID_VALUE] * 4
    assert facts["wide"] == NOT_SUPPORTED
    assert facts["stream"] == [INVALID_HANDLE] * 2
    assert facts["untouched"] == 0
    assert facts["forked"] == [NOT_INITIALIZED] * 2
    assert facts["status"] == 0

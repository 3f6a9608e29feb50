"""Streams of a rehearsal that write words of memory and wait for them: cuStreamWriteValue32 and its kin.

Times have limits that a busy machine keeps, a hundredfold of what an idle one takes.
"""

from typing import Any

import pytest
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


SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "what comes behind a wait waits, events too; callers and other streams do not, but for the default stream's": (
        "order",
        # The calls came back, and the stream waited; the copy came after the write that released it.
        {"waiting": [True, NOT_READY, 0], "other": [0, 1], "after": [0, 0, 2, 3], "batch": [[1, True], 2],
         "default": [True, 1]},
    ),
    "a wait that nobody will end does not keep the process from ending": ("deserted", {"waits": True}),
    "capturing does nothing; each launch comes back, then it writes, waits for another stream, and copies": (
        "captured",
        {"nodes": 4, "captured": [0, 0], "seen": [[True, step, 2, 0] for step in (5, 6, 7)]},
    ),
    "the functions are found with and without a suffix, by linker, driver and runtime; others are not": (
        "names",
        {"done": [True] * 10, "attributes": [0, 1], "missing": [NOT_FOUND, 1, 0, 1, None]},
    ),
    "unaligned words, memory that no device reaches, unknown flags and dead streams are errors; nothing is done": (
        "refused",
        {**{kind: [INVALID_VALUE] * 2 for kind in ("unaligned", "ordinary", "beyond", "flags")},
         "batch": [INVALID_VALUE] * 4, "wide": NOT_SUPPORTED, "stream": [INVALID_HANDLE] * 2, "untouched": 0,
         "forked": [NOT_INITIALIZED] * 2, "status": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SCENES)
def test_a_scene(sentence: str) -> None:
    """As the sentence says."""
    scene, wanted = SCENES[sentence]
    facts = run(scene)
    assert {name: facts[name] for name in wanted} == wanted


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

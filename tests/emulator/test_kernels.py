"""Code that a program loads: a launch computes nothing, and is refused where a device refuses it."""

from typing import Any

import pytest
from support.rehearsal import Rehearsal, rehearse

INVALID_VALUE, NOT_INITIALIZED, NO_CONTEXT, NO_FILE, INVALID_HANDLE = 1, 3, 201, 301, 400


FACTS: dict[str, dict[str, Any]] = {
    "the stream must live and be of the module's device, the module must be loaded, the blocks must fit": {
        "without_context": NO_CONTEXT, "same": True, "here": 0, "by_name": 0, "default": 0,
        "elsewhere": INVALID_HANDLE, "no_stream": INVALID_HANDLE, "too_many_threads": INVALID_VALUE,
        "of_any": [0, 0],  # a library is of all devices
        "by_runtime": 0, "unloaded": [INVALID_HANDLE, INVALID_HANDLE], "forked": NOT_INITIALIZED,
    },
    "blocks and clusters fit as on an H200, shared memory ends at 227 KiB; a thread gets back the context it had": {
        "registers": 32, "blocks": 2, "clusters": 33, "shared": [0, INVALID_VALUE], "described": 0,
        "misaligned": INVALID_VALUE, "captured": 1, "no_file": NO_FILE,
        "pushed": [0, 1, INVALID_HANDLE],  # the default stream is now that of another device
        "popped": [True, 0, 0], "nothing_pushed": NO_CONTEXT, "limit": 4096,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Rehearsal:
    """Run the job on two devices."""
    return rehearse("kernels.py", devices=2)


@pytest.mark.parametrize("sentence", FACTS)
def test_a_launch_is_answered_as_by_a_device(found: Rehearsal, sentence: str) -> None:
    """As the sentence says, and no rule is broken."""
    found.assert_good()
    assert {name: found.facts()[name] for name in FACTS[sentence]} == FACTS[sentence]


def test_each_process_says_once_what_it_launched(found: Rehearsal) -> None:
    """Refused launches and a parent's do not count, a graph counts when it is launched; so do kernels of libraries."""
    assert found.finished.lines("computed nothing") == [
        "rehearsal: 3 kernels of Triton, another compiler or an extension (the first: of_a_module) were launched "
        "9 times and computed nothing: their results are not what a device gives"
    ]

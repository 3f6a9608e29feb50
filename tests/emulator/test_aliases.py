"""One memory at two addresses in a rehearsal: what one shows the other shows, and the last one keeps it."""

import pytest
from support.rehearsal import rehearse

SIZE = 16 << 20
INVALID_VALUE = 1


@pytest.mark.parametrize(("kind", "types"), [("nccl", 1), ("exportable", 1), ("unexportable", 0)])
def test_both_addresses_are_one_memory(kind: str, types: int) -> None:
    """Operations, collectives and copies reach it by either address; it comes back when both are gone."""
    run = rehearse("aliases.py", "looked_at", kind)
    run.assert_good()
    facts = run.facts()
    assert facts["types"] == types, "what the handle can be given to others by"
    assert facts["seen"] == [1.0, 1.0, 2.0]
    assert (facts["after"], facts["word"]) == (4.0, 7)
    assert (facts["held"], facts["kept"], facts["left"]) == (SIZE, SIZE, 0), "it counts once"
    assert facts["still"] == 7, "after the end of the first address"


def test_addresses_come_and_go_during_a_capture() -> None:
    """A relaxed capture forbids none of it, and stays valid."""
    run = rehearse("aliases.py", "in_a_capture")
    run.assert_good()
    assert run.facts() == {"did": [0] * 5, "seen": 3}


def test_what_a_program_asks_first() -> None:
    """Devices have virtual memory with descriptors and no GPUDirect of it; memory of cudaMalloc has no handle."""
    run = rehearse("aliases.py", "attributes")
    run.assert_good()
    assert run.facts() == {"attributes": [1, 1, 0], "of_malloc": INVALID_VALUE}

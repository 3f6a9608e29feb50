"""A scope ends while another thread has torch make the communicator of the scope's group, or waits at its store."""

from pathlib import Path

from support.audits import CLEAN, Audit
from support.rehearsal import rehearse


def test_a_first_scope_beside_the_first_collective_of_its_group(tmp_path: Path) -> None:
    """Each rank finds the communicator made, begun or neither, and torch makes one, whichever thread comes first."""
    run = rehearse("first_scope_beside.py", ranks=2, log=tmp_path).assert_good()
    for facts in run.told:
        cases = ("before", "after", "alone", "two groups")
        assert facts["found"] == dict.fromkeys(cases, [3 * 1024.0] * 2)
    Audit(tmp_path).expect(CLEAN)


def test_a_first_scope_while_a_thread_waits_at_the_store(tmp_path: Path) -> None:
    """A wait keeps all others from the connection that the program has, so tracehook has its own from the beginning."""
    rehearse("store_in_use.py", ranks=2, log=tmp_path).assert_good()
    Audit(tmp_path).expect(CLEAN)

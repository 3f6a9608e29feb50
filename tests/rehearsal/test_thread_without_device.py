"""A group without a device of its own, asked about on a thread whose current device is not the rank's."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import rehearse

TOLD = {
    "scope": {"sums": [True, True], "symmetric": [True, True]},
    "explain": {"sums": [True], "reason": "symmetric"},
    "peers": {},
    "subgroup": {"symmetric": True},
}


@pytest.mark.parametrize("case", TOLD)
def test_the_device_is_the_one_that_the_program_uses(tmp_path: Path, case: str) -> None:
    """Not the first device, which a thread has that a program began; the main thread's scopes are right, too."""
    run = rehearse("thread_without_device.py", case, ranks=2, log=tmp_path).assert_good()
    assert run.told == [TOLD[case]] * 2
    Audit(tmp_path).expect(CLEAN)


def test_the_first_scope_of_a_group_waits_for_no_call_of_another_thread(tmp_path: Path) -> None:
    """Rank 0 comes to that scope on one thread, and then to a call of another group; rank 1 first to the call."""
    run = rehearse("thread_without_device.py", "beside", ranks=2, log=tmp_path).assert_good()
    assert run.told == [{"symmetric": True}] * 2
    Audit(tmp_path).expect(CLEAN)

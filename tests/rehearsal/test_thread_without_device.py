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

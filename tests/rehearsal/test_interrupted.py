"""What a signal's handler raises while a rank waits in a call reaches the program, as it would without tracehook."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rehearsal import rehearse


@pytest.mark.parametrize(("signal", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGALRM", "Alarm")])
@pytest.mark.parametrize("call", ["place", "registered", "scope"])
def test_what_a_handler_raises_reaches_the_program(tmp_path: Path, call: str, signal: str, raised: str) -> None:
    """No error of torch or NCCL stands for it, and it is not lost."""
    env = {"SYMM_REGISTER_LOCAL": "auto", "SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_TIMEOUT": "30"}
    run = rehearse("interrupted.py", call, signal, ranks=2, log=tmp_path, env=env).assert_good()
    assert run.facts(1) == {"caught": raised}, run.output
    assert "Exception ignored" not in run.finished.err

"""Two goldens that need a core with a bug, made once more: the audit finds the same in them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from audit.goldens import GOLDENS, audit
from audit.make_golden import rehearse
from audit.mutants import NotBuiltHere
from tracehook.rehearsal import emulation

# No rank of these jobs waits in vain, and a late one is no finding.
PATIENT = {"SYMM_REGISTER_TIMEOUT": "60", "TRACEHOOK_EMU_WINDOW_TIMEOUT": "120"}


def _no_rehearsal() -> str:
    """Return why this installation cannot rehearse; empty if it can."""
    try:
        emulation.require_cuda_build()
    except emulation.NoEmulation as problem:
        return str(problem)
    return ""


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch command")
@pytest.mark.skipif(bool(_no_rehearsal()), reason=_no_rehearsal())
@pytest.mark.parametrize("name", ["registered-elsewhere", "freed-while-registered-window"])
def test_a_bug_is_found_again(name: str, tmp_path: Path) -> None:
    """With the bug in today's core, the job of the golden breaks the same rules, of NCCL and of the audit."""
    (golden,) = (golden for golden in GOLDENS if golden.name == name)
    try:
        log, broken, output = rehearse(replace(golden, env={**golden.env, **PATIENT}), tmp_path)
    except NotBuiltHere as problem:
        pytest.skip(str(problem))
    assert broken == sorted(golden.broken), output
    text, findings = audit(log)
    expected = json.loads((golden.path / "expected.json").read_text())
    # The golden is from before the rehearsal logged what it saw.
    assert {row[0] for row in json.loads(findings)} - {"rule-broken"} == {row[0] for row in expected} - {
        "rule-broken"
    }, text

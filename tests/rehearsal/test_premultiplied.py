"""Operators that a program makes have another number on each rank, and are one operation."""

from __future__ import annotations

from pathlib import Path

from audit.goldens import audit
from support.rehearsal import rehearse


def test_operators_of_the_program_are_no_difference(tmp_path: Path) -> None:
    """The sums are right, no rule is broken, and the audit finds that all ranks made the same calls."""
    run = rehearse("premultiplied.py", ranks=2, log=tmp_path)
    run.assert_good()
    for rank in range(2):
        assert run.facts(rank)["sums"] == [6.0, 6.0, 48.0]
        assert run.facts(rank)["part"] == 6.0
    text, _ = audit(tmp_path)
    assert "Clean: " in text, text

"""cuDNN is not emulated, and programs that prefer its attention run."""

from __future__ import annotations

import pytest
from support.rehearsal import rehearse


def test_cudnns_attention_is_never_chosen() -> None:
    """The next kernel that the program allows takes its place; PyTorch refuses where there is none."""
    run = rehearse("choice_of_attention.py")
    run.assert_good()
    assert run.facts()["differs"] == pytest.approx(0, abs=0.02)
    assert run.facts()["gradient"] is True
    assert "No viable backend" in run.facts()["alone"]

"""tracehook.explain: every reason code, where it applies. Those of captures and warnings are in their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import both, play

REASONS = {
    "symmetric": ("symmetric", "all of its 33554432 bytes lie in a window"),
    "symmetric_view": ("symmetric", "all of its 33554032 bytes lie in a window"),
    "symmetric_later": ("symmetric", "all of its"),
    "not_cuda": ("not_cuda", "on cpu"),
    "not_enabled": ("not_enabled", "no scope was entered"),
    "not_in_pool": ("not_in_pool", "tracehook.symmetric(group)"),
    "not_registered": ("not_registered", "pool 'shared', but in no window of group 1"),
    "other_device": ("other_device", "the tensor is on cuda:"),
    "outside": ("outside", "ends outside it"),
    "mismatch": ("mismatch", "rank 0 wants '67108864 bytes'; rank 1 wants '100663296 bytes'"),
    "timeout": ("timeout", "rank 1 did not come"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the job once."""
    found = play("symmetric_explain.py", "common", log=tmp_path_factory.mktemp("explain"))
    found.assert_good()
    return found


@pytest.mark.parametrize("name", REASONS)
def test_reason(run: Rehearsal, name: str) -> None:
    """The code is the one that applies, the sentence has the facts in one line, and is_symmetric says the same."""
    code, part = REASONS[name]
    for symmetric, reason, text, answer in both(run, name):
        assert reason == code
        assert part in text
        assert "\n" not in text
        assert symmetric == answer == (code == "symmetric")


def test_reason_on_a_rank_outside_of_the_group(run: Rehearsal) -> None:
    """A rank that is no member is told so."""
    member, other = both(run, "no_member")
    assert member[1] == "not_registered"
    assert other[:3] == [False, "no_communicator", "this rank is no member of the group"]


def test_reason_with_an_old_nccl(tmp_path: Path) -> None:
    """With an NCCL from before windows the reason has both versions."""
    found = play("symmetric_explain.py", "too_old", log=tmp_path, version="22600")
    found.assert_good()
    for symmetric, reason, text, _ in both(found, "nccl_too_old"):
        assert (symmetric, reason) == (False, "nccl_too_old")
        assert "22600" in text
        assert "22703" in text

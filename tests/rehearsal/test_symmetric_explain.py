"""tracehook.explain: every reason code, where it applies. Those of captures and warnings are in their own tests."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import NEW, both, play

REASONS = {
    "symmetric": ("symmetric", "all of its 33554432 bytes lie in a window"),
    "symmetric_view": ("symmetric", "all of its 33554032 bytes lie in a window"),
    "symmetric_later": ("symmetric", "all of its"),
    "not_cuda": ("not_cuda", "on cpu"),
    "not_enabled": ("not_enabled", "no scope was entered"),
    "not_in_pool": ("not_in_pool", "tracehook.symmetric(group)"),
    "not_registered": ("not_registered", "pool 'group 0', but in no window of group 1"),
    "other_device": ("other_device", "the tensor is on cuda:"),
    "outside": ("outside", "ends outside it"),
    "mismatch": ("mismatch", "rank 0 wants 'a segment of 67108864 bytes'; rank 1 wants 'a segment of 100663296 bytes'"),
    "timeout": ("timeout", "rank 1 did not come"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the job once."""
    return play("symmetric_explain.py", "common", log=tmp_path_factory.mktemp("explain")).assert_good()


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


PATHS = {  # the path and its reason with NCCL 2.30.7; the rules by version are in tests/unit/test_paths.py
    "without_operation": (None, None),
    "in_place": ("symmetric", "in_windows"),
    "two_windows": ("symmetric", "in_windows"),
    "integers": ("plain", "dtype"),
    "gathered_integers": ("symmetric", "in_windows"),
    "as_integers": ("plain", "dtype"),
    "maximum": ("plain", "reduction"),
    "average": ("symmetric", "in_windows"),
    "outside": ("plain", "windows"),
    "send_outside": ("depends", "cost_model"),
    "large_send_outside": ("symmetric", "in_windows"),
    "receive_outside": ("symmetric", "in_windows"),
    "all_to_all": ("plain", "operation"),
    "not_cuda": ("plain", "not_cuda"),
    "not_enabled": ("plain", "not_enabled"),
    "copied": ("copy_engine", "policy"),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the job that asks for paths."""
    return play("symmetric_explain.py", "paths", log=tmp_path_factory.mktemp("paths"), version=NEW).assert_good()


@pytest.mark.parametrize("name", PATHS)
def test_path(asked: Rehearsal, name: str) -> None:
    """The path and its reason are those of the version, the text is one line, and the rest of the answer is as ever."""
    for path, reason, text, same in both(asked, name):
        assert (path, reason) == PATHS[name], text
        assert (path is None) == (text is None)
        assert "\n" not in (text or "")
        assert same


def test_path_on_a_rank_outside_of_the_group(asked: Rehearsal) -> None:
    """A rank that is no member has no path there, and is told so."""
    _, other = both(asked, "no_member")
    assert other == ["plain", "no_communicator", "this rank is no member of the group", True]


def test_path_of_an_unknown_operation(asked: Rehearsal) -> None:
    """A ValueError names the known ones, wherever the tensor is."""
    for name in ("unknown", "unknown_on_cpu"):
        for kind, text in both(asked, name):
            assert kind == "ValueError"
            assert text.startswith("tracehook: the operation is 'add': give one of all_gather, all_reduce")


def test_an_explanation_shows_its_path(asked: Rehearsal) -> None:
    """Only where an operation was named."""
    for without, named in both(asked, "shown"):
        assert without.endswith("')")
        assert "path" not in without
        assert named.startswith(without[:-1] + ", path='symmetric', path_reason='in_windows', path_text='both")


@pytest.mark.parametrize(
    ("fabric", "path", "words"),
    [("0", "plain", "no symmetric kernel for all_reduce between"), ("1", "depends", "if one NVLink domain joins all")],
)
def test_path_between_hosts(tmp_path: Path, fabric: str, path: str, words: str) -> None:
    """Between hosts that share no NVLink the path is plain. Whether a fabric joins them, only NCCL knows."""
    found = play("symmetric_explain.py", "several_hosts", log=tmp_path, TRACEHOOK_EMU_FABRIC=fabric).assert_good()
    for got, reason, text, same in both(found, "several_hosts"):
        assert (got, reason, same) == (path, "domain", True)
        assert words in text
    assert both(found, "sum") == [3.0, 3.0]
    for event in found.events("communicator.paths"):
        assert f"domain={'several' if path == 'plain' else ''} " in event["surroundings"]


def test_reason_with_an_old_nccl(tmp_path: Path) -> None:
    """With an NCCL from before windows the reason has both versions."""
    found = play("symmetric_explain.py", "too_old", log=tmp_path, version="22600").assert_good()
    for symmetric, reason, text, _ in both(found, "nccl_too_old"):
        assert (symmetric, reason) == (False, "nccl_too_old")
        assert "22600" in text
        assert "22703" in text

"""Expandable segments: followed as ranges, explained, and registered by no version of NCCL."""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse
from support.symmetric import NEW, OLD
from support.torch_versions import needs_nccl2

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def play(log: Path, when: str, version: str = OLD, **more: str) -> Rehearsal:
    """Run the job with two ranks; it ends well."""
    env = EXPANDABLE | {"TRACEHOOK_EMU_NCCL_VERSION": version} | more
    return rehearse("expandable.py", when, ranks=2, log=log, hook=when == "first", env=env).assert_good()


@pytest.mark.parametrize(("when", "version"), [("first", OLD), ("first", NEW), ("late", OLD)])
def test_ranges_are_those_of_the_allocator_and_no_version_registers_them(
    tmp_path: Path, when: str, version: str
) -> None:
    """After growing, shrinking and growing again, the mapped ranges are what the allocator's snapshot shows.

    None is registered, `explain` says why, and a scope's memory is symmetric.
    """
    run = play(tmp_path, when, version)
    ranges = {event["addr"] for event in run.events("range.map")}
    assert ranges
    assert not ranges & {event["addr"] for event in run.events("register.local")}
    for facts in run.told:
        for at in (["adopted"] if when == "late" else []) + ["grown", "holes", "grown_again", "freed"]:
            assert facts[at]["ours"] == facts[at]["torch"], at
            assert facts[at]["differences"] == 0, at
        assert len(facts["holes"]["ours"]) > len(facts["grown"]["ours"]), "memory went from the middle"
        assert facts["freed"]["ours"] == []
        assert facts["status"]["expandable_bytes"] == sum(size for _, size in facts["grown"]["ours"])
        assert facts["reason"] == "expandable_segment"
        assert "which changes its size in place, and nothing that is registered with NCCL can" in facts["text"]
        assert (facts["symmetric"], facts["sum"]) == (True, 2.0)


def test_older_ones_are_said(tmp_path: Path) -> None:
    """What is expandable and older than the hook is adopted, and said, also if the setting is off by then."""
    run = play(tmp_path, "switched_off")
    for rank, facts in enumerate(run.told):
        assert facts["adopted"]["ours"] == facts["adopted"]["torch"] != []
        assert list(facts["status"]["reasons"]) == ["expandable_segments"]
        assert [event["adopted"] for event in run.events("range.map", rank)] == [True]


@needs_nccl2
def test_beside_a_group_that_registers_by_itself(tmp_path: Path) -> None:
    """The group leaves expandable segments out too; the ranges are right, and a scope's memory is registered."""
    run = play(tmp_path, "first", NEW, TORCH_DIST_USE_NCCL2="1")
    for facts in run.told:
        assert facts["holes"]["ours"] == facts["holes"]["torch"]
        assert (facts["reason"], facts["symmetric"], facts["sum"]) == ("expandable_segment", True, 2.0)
    ranges = {event["addr"] for event in run.events("range.map")}
    assert not ranges & {event["addr"] for event in run.events("register.local")}

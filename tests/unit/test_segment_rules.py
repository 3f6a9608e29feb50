"""Rules by which segments stay unregistered: how they are chosen, and what fits them."""

import os
from types import SimpleNamespace

import pytest

from tracehook.hook import registration
from tracehook.nccl.segment_rules import ALWAYS, LeaveOut, SegmentRule, rules_of
from tracehook.settings import Settings

SIZE = 4096
GRAPH = 2  # pool_kinds.def


def _names(chosen, environment=None, said=None, offered=()):
    return [rule.name for rule in rules_of(chosen, environment or {}, (said or []).append, offered)]


def _offered(found):
    return [SimpleNamespace(name="mine", value="package:rule", load=lambda: found)]


def test_pausable_memory_and_own_allocators_are_left_out_by_default():
    """The first rule is always there; `own-allocators` takes the second one away."""
    assert _names(("all",)) == ["no-pausable", "no-own-allocators"]
    assert _names(("own-allocators", "no-pausable")) == ["no-pausable"]


def test_choices_are_rules_in_their_order():
    """The program's no to NCCL comes after them."""
    environment = {"NCCL_LOCAL_REGISTER": "0", "NCCL_GRAPH_REGISTER": "0"}
    rules = rules_of(("from-1KiB", "no-graph-pools"), environment, lambda _: None)
    assert rules[2:] == [
        SegmentRule("from-1KiB", LeaveOut(below=1024)),
        SegmentRule("no-graph-pools", LeaveOut(pools=("graph",))),
        SegmentRule("NCCL_LOCAL_REGISTER=0", LeaveOut()),
        SegmentRule("NCCL_GRAPH_REGISTER=0", LeaveOut(pools=("graph",))),
    ]


@pytest.mark.parametrize("value", ["1", "", "00"])
def test_only_a_zero_is_a_no(value):
    """NCCL reads anything else as on."""
    assert _names(("all",), {"NCCL_GRAPH_REGISTER": value}) == ["no-pausable", "no-own-allocators"]


def test_what_tracehook_sets_for_nccl_is_no_answer_of_the_program(monkeypatch):
    """A forked process reads the variables again."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(registration, "_set_for_nccl", {})
    monkeypatch.setattr(registration, "_rules", [ALWAYS])
    registration.keep_nccl_from_captures()
    assert os.environ == {"NCCL_GRAPH_REGISTER": "0"}
    rules = registration.choose_rules(Settings(local="all"))
    assert [rule.name for rule in rules] == ["no-pausable", "no-own-allocators"]


@pytest.mark.parametrize("found", [LeaveOut(below=1), [LeaveOut(below=1)], (LeaveOut(below=1),)])
def test_a_package_has_a_rule_or_several(found):
    """Each has the name of the entry point."""
    assert rules_of(("mine",), {}, pytest.fail, _offered(found))[2:] == [SegmentRule("mine", LeaveOut(below=1))]


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (_offered("graph"), "TypeError: package:rule is no LeaveOut, and no list of them"),
        (_offered(None), "TypeError: "),
        (_offered(LeaveOut()) * 2, "more than one installed package has it under tracehook.segments"),
        ((), "no installed package has it under tracehook.segments"),
    ],
)
def test_a_package_that_has_none_is_one_line(offered, why):
    """Its name and the reason are said, and the other rules stand."""
    said: list[str] = []
    assert len(rules_of(("mine", "no-graph-pools"), {}, said.append, offered)) == 3
    assert len(said) == 1
    assert said[0].startswith("SYMM_REGISTER_SEGMENTS=mine leaves nothing out: ")
    assert why in said[0]


def test_where_nothing_is_registered_only_a_wrong_name_is_said():
    """The program's no to NCCL changes nothing there; a name that nobody has is a mistake everywhere."""
    said: list[str] = []
    rules = rules_of(("mine",), {"NCCL_LOCAL_REGISTER": "0"}, said.append, registers=False)
    assert [rule.name for rule in rules[2:]] == ["NCCL_LOCAL_REGISTER=0"]
    assert [line.partition(":")[0] for line in said] == ["SYMM_REGISTER_SEGMENTS=mine leaves nothing out"]


def test_rules_beyond_what_the_native_side_takes_are_one_line():
    """The log has a bit for each rule."""
    said: list[str] = []
    assert len(rules_of(("mine",), {}, said.append, _offered([LeaveOut(below=1)] * 30))) == 16
    assert said == ["tracehook follows 15 rules for segments, and leaves the others of 31 unread"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pools": "graph"},
        {"pools": ("captured",)},
        {"memories": ("device",)},
        {"hosts": "two"},
        {"below": -1},
        {"below": 1.5},
        {"below": True},
        {"most_ranks": -1},
    ],
)
def test_a_rule_that_can_fit_nothing_is_refused(wrong):
    """Where it is made, so that the package's author sees it."""
    with pytest.raises(ValueError, match=r"expected|whole numbers"):
        LeaveOut(**wrong)


@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
        (LeaveOut(pools=("graph",)), True),
        (LeaveOut(pools=("private", "graph")), True),
        (LeaveOut(pools=("default",)), False),
        (LeaveOut(pools=("graph",), below=SIZE + 1), True),
        (LeaveOut(pools=("graph",), below=SIZE), False),
        (LeaveOut(memories=("unknown",)), True),
        (LeaveOut(memories=("shareable",)), False),
        (LeaveOut(), True),
        (LeaveOut(least_ranks=1), False),
        (LeaveOut(most_ranks=1 << 20), False),
        (LeaveOut(hosts="several"), True),
        (LeaveOut(hosts="one"), False),
    ],
)
def test_a_segment_is_left_out_if_all_that_the_rule_has_fits(harness, rule, left_out):
    """At its birth, and for a communicator that is younger: of several hosts, and of a size that is not known."""
    harness.set_rules([rule.row(), LeaveOut(pools=("own",)).row()])
    harness.create(1)
    harness.alloc(0, 0x10000, SIZE, GRAPH)
    harness.create(2)
    held = [] if left_out else [(0x10000, SIZE)]
    assert harness.held(1) == harness.held(2) == held
    assert bool(harness.segments()[0].left_out & 2) == (left_out or rule.of_all_segments())
    assert not harness.segments()[0].left_out & ~2


def test_the_first_rule_is_the_native_side_s_own():
    """Nobody can take it away, so it is not told."""
    assert SegmentRule("no-pausable", LeaveOut(memories=("pausable",))) == ALWAYS

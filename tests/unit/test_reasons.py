"""Why the hook stands aside: every reason has a number, a name and advice."""

import re
from pathlib import Path

import pytest

import tracehook
from tracehook.log import ring
from tracehook.log.reasons import REASONS, number_of


def test_every_reason_is_logged_as_an_event_of_the_table():
    """A reason is one of the two events that the log knows for it."""
    assert {reason.event for reason in REASONS.values()} == {"hook.unsupported", "hook.conflict"}
    assert {reason.event for reason in REASONS.values()} <= set(ring.EVENTS)


def test_names_are_constant_and_distinct():
    """A name is a key that programs compare, so it is short, lower case and unique."""
    names = [reason.name for reason in REASONS.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)


@pytest.mark.parametrize("number", REASONS)
def test_a_name_leads_back_to_its_number(number):
    """The number in the log and the name in the status are two ways to say the same."""
    assert number_of(REASONS[number].name) == number


@pytest.mark.parametrize("number", REASONS)
def test_advice_is_one_line(number):
    """Advice goes to stderr as one line, without a full stop to copy by accident."""
    advice = REASONS[number].advice
    assert "\n" not in advice
    assert advice == advice.strip().rstrip(".")
    assert len(advice) > 20


def test_numbers_begin_at_one_without_a_gap():
    """0 means that there is no reason, and the numbers are never reused."""
    assert sorted(REASONS) == list(range(1, len(REASONS) + 1))


def test_the_native_numbers_mean_the_same():
    """Both sides number the reasons that the native side gives alike."""
    source = Path(tracehook.__file__).parent / "cpp" / "bindings" / "process.h"
    if not source.exists():
        pytest.skip("installed without its sources")
    given = re.findall(r"k(\w+) = (\d+),", source.read_text().partition("enum class Reason")[2].partition("}")[0])
    snake = {int(number): re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name, number in given}
    expected = {0: "none", 1: "expandable_segments", 2: "not_caching", 3: "foreign_allocator"}
    assert snake == expected
    assert [REASONS[number].name for number in (1, 2, 3)] == [
        "expandable_segments",
        "no_caching",
        "foreign_allocator",
    ]

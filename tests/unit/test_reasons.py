"""Why the hook stands aside: every reason has a number, a name and advice."""

import re

import pytest

from tracehook.log.tables import EVENTS, REASONS, number_of


def test_every_reason_is_logged_as_an_event_of_the_table():
    """A reason is one of the two events that the log knows for it."""
    assert {reason.event for reason in REASONS.values()} == {"hook.unsupported", "hook.conflict"}
    assert {reason.event for reason in REASONS.values()} <= set(EVENTS)


def test_names_are_constant_and_distinct():
    """A name is a key that programs compare: short, lower case and unique; numbers are never reused, and 0 is none."""
    names = [reason.name for reason in REASONS.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    assert sorted(REASONS) == list(range(1, len(REASONS) + 1))


@pytest.mark.parametrize("number", REASONS)
def test_a_name_leads_back_to_its_number_and_advice_is_one_line(number):
    """The number in the log and the name in the status say the same; advice has no full stop to copy by accident."""
    assert number_of(REASONS[number].name) == number
    advice = REASONS[number].advice
    assert "\n" not in advice
    assert advice == advice.strip().rstrip(".")
    assert len(advice) > 20

"""Why the hook stands aside: every reason has a number, a name and advice."""

import re

import pytest

from tracehook.log.tables import EVENTS, REASONS, number_of


def test_every_reason_is_logged_as_an_event_of_the_table():
    """A reason is one of the two events that the log knows for it."""
    assert {reason.event for reason in REASONS.values()} == {"hook.unsupported", "hook.conflict"}
    assert {reason.event for reason in REASONS.values()} <= set(EVENTS)


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

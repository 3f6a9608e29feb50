"""The one table of events, on its two sides."""

import re

import pytest

from tracehook import _core
from tracehook.log import ring
from tracehook.log.reasons import REASONS
from tracehook.policies import Answer


def test_both_tables_are_equal():
    """The numbers in a ring file mean the same to the writer and to the reader."""
    assert list(ring.EVENTS) == [name for name, _ in _core.event_table()]
    assert list(ring.OPERATIONS) == _core.operations()
    assert list(ring.ANSWERS) == [answer.value for answer in Answer]


def test_names_are_nouns_and_verbs():
    """Every event is called ``noun.verb``, once."""
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in ring.EVENTS)
    assert len(set(ring.EVENTS)) == len(ring.EVENTS)


def test_warnings_are_what_a_user_must_see():
    """Without a log these events, and no others, are shown on stderr."""
    assert {name for name, is_warning in _core.event_table() if is_warning} == {
        "segment.unknown",
        "communicator.failed",
        "deregister.stalled",
        "hook.unsupported",
        "hook.conflict",
        "ledger.difference",
        "log.dropped",
        "register.stalled",
    }


def test_both_tables_agree_on_severities():
    """What the readers of logs count is what the native table calls a warning or a problem."""
    severities = dict(zip(ring.EVENTS, _core.severities(), strict=True))
    assert set(severities.values()) == {"info", "problem", "warning"}
    assert {name for name, severity in severities.items() if severity == "warning"} == ring.WARNINGS
    assert {name for name, severity in severities.items() if severity == "problem"} == ring.PROBLEMS
    assert {name for name, is_warning in _core.event_table() if is_warning} == ring.WARNINGS


def test_a_number_outside_the_table_has_a_name():
    """A newer writer's event is kept under its number."""
    record = ring.Record(*(0,) * 13, kind=200, device=-1, extra=0)
    assert ring.fields_of(record)[0] == "unknown.200"


@pytest.mark.parametrize("number", REASONS)
def test_a_reason_is_read_from_a_ring_as_it_is_logged(number):
    """A ring keeps the number; who reads it gets the name, and what to do."""
    row = REASONS[number]
    record = ring.Record(*(0,) * 13, kind=ring.EVENTS.index(row.event), device=-1, extra=0)._replace(value=number)
    name, fields = ring.fields_of(record)
    assert (name, fields["reason"], fields["advice"]) == (row.event, row.name, row.advice)


def test_a_reason_of_a_later_version_keeps_its_number():
    """It has no name here, and is told all the same."""
    record = ring.Record(*(0,) * 13, kind=ring.EVENTS.index("hook.conflict"), device=-1, extra=0)._replace(value=99)
    assert ring.fields_of(record)[1]["reason"] == "reason 99"

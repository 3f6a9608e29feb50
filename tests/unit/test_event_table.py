"""The tables that C++ and Python read: events, their fields, and other names behind numbers."""

import re
from importlib.resources import files
from typing import Any
from unittest.mock import Mock

import pytest
from support.records import packed

from tracehook.audit.fields import TABLE
from tracehook.log import records, tables
from tracehook.log.journal import Journal
from tracehook.policies import Answer

COMMON = {name for name, field in TABLE.items() if field.is_common}
TEXTS = {"exception", "message", "raised_at", "thread_name"}  # which the journal adds to what the ring has
ROOM = files("tracehook") / "cpp" / "events"


def _told(event: str, **given: int) -> tuple[str, dict[str, Any]]:
    (record,) = records.unpack(packed(event, **given))
    return records.fields_of(record)


@pytest.mark.parametrize("table", [row.name for row in ROOM.iterdir() if row.name.endswith(".def")])
def test_every_row_is_read(table):
    """No row is written in a way that C++ reads and Python does not."""
    rows = [line for line in (ROOM / table).read_text().splitlines() if re.match(r"[^\s/#]", line)]
    assert [row[0] for row in tables.rows(f"events/{table}")] == [row.partition("(")[0] for row in rows]


def test_names_are_nouns_and_verbs():
    """Every event is called ``noun.verb``, once."""
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in tables.EVENTS)
    assert len(set(tables.EVENTS)) == len(tables.EVENTS)


def test_warnings_are_what_a_user_must_see():
    """Without a log these events, and no others, are shown on stderr."""
    assert {event.severity for event in tables.ABOUT.values()} == {"info", "problem", "warning"}
    assert {
        "segment.captured", "segment.unknown", "communicator.failed", "communicator.graphs", "deregister.stalled",
        "hook.unsupported", "hook.conflict", "ledger.difference", "log.dropped", "register.stalled", "register.foreign",
        "register.unused",
    } == tables.WARNINGS  # fmt: skip


def test_the_numbers_of_a_log_are_those_of_its_format():
    """A row that moved would give old logs another meaning."""
    assert tables.EVENTS[:3] == ("trace.begin", "trace.end", "segment.alloc")
    assert tables.EVENTS[-3:] == ("group.known", "agreement.waits", "agreement.waited")
    assert tables.KINDS == ("own", "observed", "off")
    assert tables.ANSWERS == ("shared", "isolated", "none") == tuple(answer.value for answer in Answer)
    assert tables.HANDLES == ("none", "runtime", "file", "fabric")
    assert [name for name, _, _ in tables.OPERATIONS] == [
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "all_reduce_config",
        "all_gather_config", "reduce_scatter_config", "all_to_all_config", "gather_config", "scatter_config",
        "broadcast_config", "reduce_config",
    ]  # fmt: skip
    assert {compared for _, *both in tables.OPERATIONS for compared in both} == {"where", "whether", "nothing"}


def test_a_number_outside_the_table_is_told_all_the_same():
    """A newer writer's event, and its reason, are kept under their numbers."""
    assert _told("200")[0] == "unknown.200"
    assert _told("hook.conflict", reason=99)[1]["reason"] == "reason 99"


@pytest.mark.parametrize("number", tables.REASONS)
def test_a_reason_is_read_from_a_ring_as_it_is_logged(number):
    """A ring keeps the number; who reads it gets the name, and what to do."""
    row = tables.REASONS[number]
    name, fields = _told(row.event, reason=number)
    assert (name, fields["reason"], fields["advice"]) == (row.event, row.name, row.advice)


def test_the_lines_of_the_journal_have_the_fields_that_their_rows_name(core, tmp_path, monkeypatch):
    """It writes the end and the losses itself, and adds to an exception what the ring cannot hold."""
    journal, write = Journal(core, tmp_path / "a.jsonl", {}), Mock(return_value=True)
    monkeypatch.setattr(journal, "_write_line", write)
    core.drop(3)
    core.push("thread.exception", texts=1)
    journal.texts[1] = dict.fromkeys(TEXTS, "")
    counts = {"segments": 0, "bytes": 0, "communicators": 0}
    journal.close(lambda: counts | {"how": "exception", "exception": "", "message": "", "raised_at": "", "status": 1})
    assert {event: set(fields) - COMMON for event, fields in (call.args for call in write.mock_calls)} == {
        event: set(tables.ABOUT[event].fields) - COMMON for event in ("thread.exception", "log.dropped", "trace.end")
    }


def test_every_field_has_a_meaning_and_an_event():
    """The table of fields has all that the events name, and nothing else."""
    named = {field for event in tables.ABOUT.values() for field in event.fields}
    assert {name for name, field in TABLE.items() if not field.is_common} == named - COMMON
    assert named <= TABLE.keys()


def test_a_field_has_one_type_in_all_events():
    """The audit has one column for it."""
    for name, event in tables.ABOUT.items():
        assert {field: TABLE[field].sql_type for field in event.fields} == event.fields, name


@pytest.mark.parametrize("event", tables.EVENTS)
def test_a_sentence_is_plain(event):
    """One or more sentences with a full stop, and no field that the event cannot have."""
    row = tables.ABOUT[event]
    assert re.fullmatch(r"\S.*\.", row.sentence)
    assert "|" not in row.sentence
    named = re.findall(r"{(\w+)}", row.sentence + row.refused)
    assert set(named) <= COMMON | set(row.fields)
    assert not row.refused or {"ok", "error"} <= set(row.fields)

"""docs/log-schema.md, held against the logs of real jobs and against what the audit reads."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from support.audits import GOLDEN
from support.rehearsal import ROOT

from audit.goldens import DIRECTORY
from tracehook.audit.fields import BEGIN, FIELDS
from tracehook.log import tables
from tracehook.log.journal import SCHEMA

PAGE = (ROOT / "docs" / "log-schema.md").read_text()
OF_SQL = {
    "VARCHAR": str,
    "BOOLEAN": bool,
    "INTEGER[]": list,
    **dict.fromkeys(("DOUBLE", "INTEGER", "BIGINT", "UBIGINT"), int),
}
WINDOWS = {"send_window", "receive_window"}  # a number, or "overrun"


def _events() -> Iterator[dict[str, Any]]:
    for file in DIRECTORY.glob("*/*.jsonl"):
        if file.parent.name not in ("damaged-file", "torn-line"):
            yield from map(json.loads, file.read_text().splitlines())


@pytest.fixture(scope="module")
def types() -> dict[str, set[type]]:
    """The types that each field has in the logs of all golden directories, but for null."""
    found: defaultdict[str, set[type]] = defaultdict(set)
    for event in _events():
        for name, value in event.items():
            if name == "segments" and event["event"] == "trace.begin":
                continue  # there it is a setting
            found[name] |= {type(value)} - {type(None)}
    return dict(found)


def test_a_field_has_one_type_wherever_it_occurs(types: dict[str, set[type]]) -> None:
    """Tables can be made of the logs without looking at the event."""
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1 and name not in WINDOWS} == {}


def test_the_audit_reads_every_field_as_what_it_is(types: dict[str, set[type]]) -> None:
    """No field of a log is left out of the tables, and none is converted on its way into them."""
    settings = {"timeout", "check", "integrations", "pool_limit", "log_limit"}
    only_in_begin = {*BEGIN, *settings, "job", "launcher_job", "attempt", "time", "rank", "world_size", "pid"}
    assert set(types) - set(FIELDS) - only_in_begin == set()
    known = {name: OF_SQL[kind] for name, kind in FIELDS.items() if name in types and name not in WINDOWS}
    wrong = {name: types[name] for name, kind in known.items() if types[name] - {kind, float if kind is int else kind}}
    assert wrong == {}


def test_the_page_names_the_newest_schema() -> None:
    """In its title, and first in its list of versions."""
    assert PAGE.startswith(f"# The log, schema {SCHEMA}\n")
    assert re.findall(r"^\| (\d+\.\d+) \| ", PAGE, re.MULTILINE)[0] == SCHEMA


def test_every_field_and_event_is_on_the_page(types: dict[str, set[type]]) -> None:
    """What a log holds can be looked up, and so can what no golden directory has."""
    named = {word for code in re.findall(r"`([^`]+)`", PAGE) for word in re.findall(r"[a-z_.]+", code)}
    assert (set(types) | set(FIELDS)) - named - {"event"} == set()
    assert set(tables.EVENTS) - named == set()


def test_the_query_for_duckdb_runs() -> None:
    """The worked query selects the windows of the clean job, with their bytes."""
    sql = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)[0]
    rows = duckdb.execute(sql.replace("logs/", f"{GOLDEN}/")).fetchall()
    windows = [event for file in GOLDEN.glob("*.jsonl") for event in map(json.loads, file.read_text().splitlines())]
    windows = [event for event in windows if event["event"] == "register.window"]
    assert sum(row[2] for row in rows) == len(windows)
    assert sum(row[3] for row in rows) == sum(event["size"] for event in windows) / 1024**2

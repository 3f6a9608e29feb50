"""Which fields of the lines the audit reads: those that the events of the job have."""

import json

import pytest

from audit.goldens import GOLDENS, Golden
from tracehook.audit.fields import FIELDS
from tracehook.audit.lines_table import fields_of

NAMED = [pytest.param(golden, id=golden.name) for golden in GOLDENS]


@pytest.mark.parametrize("golden", NAMED)
def test_no_field_of_a_line_is_passed_by(golden: Golden) -> None:
    """Whatever a line of a real job says is read."""
    texts = [file.read_text(errors="replace") for file in golden.path.glob("*.jsonl")]
    events = [event for text in texts for line in text.splitlines() if (event := parsed(line)) is not None]
    read = set(fields_of({str(event["event"]) for event in events}))
    own = [event for event in events if event["event"] != "trace.begin"]
    assert {name for event in own for name in event if name in FIELDS} - read == set()


def test_of_an_event_that_nobody_knows_all_fields_are_read() -> None:
    """A newer version may have it, with any of them."""
    assert fields_of({"segment.alloc", "moon.rise"}) == list(FIELDS)


def test_few_events_have_few_fields() -> None:
    """A column of nothing takes time for each row."""
    read = fields_of({"segment.alloc", "segment.free"})
    assert "thread" in read
    assert "sentence" not in read
    assert len(read) < len(FIELDS) / 3


def parsed(line: str) -> dict[str, object] | None:
    """Return the event of a line; None if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None

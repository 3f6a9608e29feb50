"""Lines that are no events, or say what cannot be: a finding that names them, and no more."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, UNUSABLE, Audit, change, event_line, insert, log_of, with_begin

from tracehook.commands import summary

LINES: dict[str, bytes] = {
    "no JSON": b"damage",
    "a list": b"[1]",
    "a string": b'"event"',
    "half": b'{"event":"segment.alloc","seq":21,"t_',
    "two in one": b'{"event":"a","seq":1,"t_ns":1}{"event":"b","seq":2,"t_ns":1}',
    "invalid UTF-8": b'{"event":"policy.chosen","seq":1,"t_ns":1,"answer":"\xff\xfe"}',
    "NUL bytes": b"\0" * 4096,
    "NUL in an event": b'{"event":"policy.chosen\0","seq":1}',
    "deeply nested": b'{"event":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "an object in it": b'{"event":{"event":"x"},"seq":1,"t_ns":1}',
    "no event": b'{"seq":1,"t_ns":1}',
    "no seq": b'{"event":"policy.chosen","t_ns":1}',
    "no time": b'{"event":"policy.chosen","seq":1}',
    "negative seq": event_line(seq=-1),
    "negative time": event_line(t_ns=-1),
    "seq of zero": event_line(seq=0),
    "seq of 2^64": event_line(seq=1 << 64),
    "seq of 2^63": event_line(seq=1 << 63),
    "seq of 2^62": event_line(seq=1 << 62),
    "seq of 10^400": b'{"event":"policy.chosen","seq":1e400,"t_ns":1}',
    "time of 2^62": event_line(t_ns=1 << 62),
    "time of 2^63": event_line(t_ns=1 << 63),
    "a string for a number": event_line(seq="one"),
    "many digits": b'{"event":"policy.chosen","seq":' + b"9" * 5000 + b',"t_ns":1}',
    "duration without end": b'{"event":"register.local","seq":1,"t_ns":1,"us":1e400}',
    "duration of 10^300": event_line(us=1e300),
    "not a number": b'{"event":"register.local","seq":1,"t_ns":1,"us":NaN}',
    "size of 2^63": event_line(size=1 << 63),
    "drops of 2^63": b'{"event":"trace.end","t_ns":1,"dropped":9223372036854775807}',
}


@pytest.mark.parametrize("kind", LINES)
def test_line_that_is_no_event(logs: Path, kind: str) -> None:
    """A line that is no event is counted and named, and the others are read."""
    log = log_of(logs)
    change(log, insert(LINES[kind]))
    Audit(logs, "--max-findings", "0").expect(FINDINGS, log.name, "damaged-file", "2 ranks")


HARMLESS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "CRLF": lambda lines: [line.rstrip(b"\n") + b"\r\n" for line in lines],
    "empty lines": lambda lines: [part for line in lines for part in (line, b"\n")],
    "spaces": lambda lines: [b"  " + line.rstrip(b"\n") + b"  \n" for line in lines],
    "an unknown field": lambda lines: [line.rstrip(b"}\n") + b',"new":{"a":[1]}}\n' for line in lines],
    "duplicate keys": lambda lines: [*lines[:5], lines[5].rstrip(b"}\n") + b',"device":0}\n', *lines[6:]],
    "a field that is out of range": insert(event_line(size=1 << 64, policy=-5, device="x")),
    "a line of 3 MiB": insert(event_line(answer="x" * (3 << 20))),
    "spaces in it": lambda lines: [line.replace(b'"device":0', b'"device": 0') for line in lines],
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_line_that_is_an_event_all_the_same(logs: Path, kind: str) -> None:
    """What JSON permits, and a newer minor schema brings, changes nothing."""
    for rank in (0, 1):
        change(log_of(logs, rank), HARMLESS[kind])
    Audit(logs).expect(CLEAN)


def test_newer_minor_schema(logs: Path) -> None:
    """A newer minor schema is read, with events that are unknown here."""
    for rank in (0, 1):
        log = log_of(logs, rank)
        with_begin(log, schema="1.99", colour="red")
        change(log, lambda lines: [line.replace(b'"hook.attach"', b'"peer.export"') for line in lines])
    Audit(logs).expect(CLEAN)


@pytest.mark.parametrize("schema", ["2.0", "9", "10.1", "999999999.0"])
def test_newer_major_schema(logs: Path, schema: str) -> None:
    """One log of a newer major schema: status 2 and a sentence, for the rest may mean something else too."""
    with_begin(log_of(logs), schema=schema)
    Audit(logs).expect(UNUSABLE, log_of(logs).name, schema, "1.x")


@pytest.mark.parametrize("schema", [None, "", "x", -1, {}, "1e9", "9" * 5000, "\x1b[31m1"])
def test_schema_that_is_none(logs: Path, schema: object) -> None:
    """A schema that is no number: that log is named and left out."""
    with_begin(log_of(logs), schema=schema)
    Audit(logs).expect(FINDINGS, log_of(logs).name, "missing-ranks")


def test_no_newline_at_the_end(logs: Path) -> None:
    """A last line without its end is torn, and what is whole is read."""
    log = log_of(logs)
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    Audit(logs).expect(FINDINGS, "torn-line", "no-end", log.name)


def test_jump_in_the_numbers(logs: Path) -> None:
    """A number far ahead is a gap of that many events."""
    change(log_of(logs), insert(event_line(seq=1 << 60)))
    Audit(logs).expect(FINDINGS, "lost-events")


BEGINNINGS: list[dict[str, Any]] = [
    {"t_ns": -5},
    {"t_ns": 1 << 64},
    {"t_ns": "now"},
    {"time": "never"},
    {"time": "0001-01-01T00:00:00+14:00"},
    {"time": "9999-12-31T23:59:59-14:00"},
    {"time": "2026-11-21"},
    {"time": 5},
    {"rank": "1"},
    {"rank": -1},
    {"rank": 1 << 31},
    {"rank": True},
    {"rank": 1.5},
    {"world_size": 1 << 31},
    {"world_size": (1 << 31) - 1},
    {"world_size": -1},
    {"pid": "x"},
    {"attempt": []},
    {"job": {}},
    {"host": {"a": 1}},
    {"host": "\ud800"},
    {"job": "\ud800"},
    {"torch": "\0\0"},
    {"nccl": [[[]]]},
    {"argv": "x" * 100_000},
    {"policy": {"a": "b"}},
]


@pytest.mark.parametrize("fields", BEGINNINGS, ids=lambda fields: str(fields)[:40].encode("ascii", "replace").decode())
def test_odd_first_line(logs: Path, fields: dict[str, Any]) -> None:
    """A first line with fields that cannot be makes findings at most, or two jobs."""
    with_begin(log_of(logs), **fields)
    done = Audit(logs)
    assert "Traceback" not in repr(done)
    assert len(done.err.splitlines()) <= 1, done


HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",
    "[red]x[/red] [/] [link=http://x]",
    "a\nb\r\nc\u2028d",
    "<script>alert(1)</script>",
    "'; DROP TABLE event; --",
    "{} {0} %s %(x)s",
    "\u202eright to left",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_hostile_text(logs: Path, text: str, options: tuple[str, ...]) -> None:
    """What a log says of itself reaches no terminal as a control sequence and no renderer as markup."""
    log = log_of(logs)
    with_begin(log, host=text, argv=[text], torch=text, allocator=text)

    def spoil(line: bytes) -> bytes:
        event = json.loads(line)
        if event["event"] in ("segment.free", "register.local"):
            event |= {"addr": text, "comm": text}
        return json.dumps(event).encode() + b"\n"

    change(log, lambda lines: [lines[0], *map(spoil, lines[1:-5]), *lines[-5:]])
    done = Audit(logs, *options).expect(FINDINGS, "versions-differ")
    shown = done.out.replace("\n", "")
    assert all(character.isprintable() for character in shown), repr(shown)
    if "red" in text and not options:
        assert "[red]x[/red]" in "".join(done.out.split())


@pytest.mark.parametrize("odd", [[1], {"a": 1}, "x", None, -1.5], ids=repr)
def test_no_odd_field_ends_the_summary(logs: Path, capsys: pytest.CaptureFixture[str], odd: object) -> None:
    """Whatever a field of a line holds, the table comes, and so do the paths and the JSON."""
    files = [(path, [json.loads(line) for line in path.read_text().splitlines()]) for path in logs.iterdir()]
    names = {name for _, lines in files for line in lines[1:] for name in line} - {"event"}
    assert {"seq", "comm", "comm_id", "t_ns"} <= names
    for name in names:
        for path, lines in files:
            told = [lines[0], *(line | ({name: odd} if name in line else {}) for line in lines[1:])]
            path.write_text("".join(f"{json.dumps(line)}\n" for line in told))
        for as_json, paths in ((False, False), (True, False), (False, True)):
            summary.summary(logs, as_json=as_json, paths=paths)
    capsys.readouterr()

"""The rows of the events: what C++ and Python write of an event is what Python reads."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import python
from support.records import HEAD, packed

import tracehook
from tracehook.log import records, tables
from tracehook.log.tables import ABOUT, TYPES, rows

ROOT = Path(tracehook.__file__).parent
IN_THE_RING = [event for event, about in ABOUT.items() if not about.is_line]
OF_HEAD = set(records.Record._fields) - {"own"}
PUSHES = ("push", "_push", "log", "write")  # functions that write events: the event's name comes first
# Names that no literal says.
CHOSEN: dict[str, tuple[str, ...]] = {"REASONS[number].event": ("hook.unsupported", "hook.conflict")}
ADDED = {"write": {"peer"}}  # what the function itself adds
OF_SQL = {
    "BIGINT": int, "UBIGINT": int, "INTEGER": int, "DOUBLE": float, "BOOLEAN": bool, "VARCHAR": str, "INTEGER[]": list,
}  # fmt: skip


def test_python_reads_the_head_that_c_writes() -> None:
    """The members have the names that the table gives them, and the size that the file format has."""
    assert records.Record._fields == (*(name for _, name in tables.HEAD), "own")
    assert HEAD.size + records.OWN_BYTES == records.RECORD_BYTES == 96


def test_the_members_of_every_event_lie_where_python_reads_them() -> None:
    """Each event is pushed through C++ with another number in each member; all of them come back."""
    script = """
        import json, sys
        from tracehook import _core
        _core.make_process("", 256)
        for event, members in json.load(sys.stdin):
            _core.push(event, **members)
        sys.stdout.buffer.write(_core.peek(256))
    """
    pushed = []
    for event in IN_THE_RING:
        own = {
            name: at if TYPES[kind].of_cpp != "bool" else at % 2
            for at, (kind, name) in enumerate(ABOUT[event].parts("OWN"))
        }
        pushed.append((event, {**own, "comm": 1 << 63, "comm_rank": -2, "result": -3, "device": 4, "duration_ns": 5}))
    run = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(run, input=json.dumps(pushed).encode(), capture_output=True, timeout=60, check=True)
    found = list(records.unpack(done.stdout))
    assert [tables.EVENTS[record.kind] for record in found] == IN_THE_RING
    for record, (_, members) in zip(found, pushed, strict=True):
        assert record._asdict() | record.members() | members == record._asdict() | record.members()


@pytest.mark.parametrize(
    ("event", "members", "told"),
    [
        ("pool.limit", {"wanted": 1}, "pool.limit lacks held"),
        ("pool.limit", {"wanted": 1, "held": 2, "pool": 3}, "pool.limit has fewer fields than were given"),
        ("log.dropped", {}, "no event of the ring is named log.dropped"),
    ],
)
def test_a_push_that_does_not_fit_the_row_raises(event: str, members: dict[str, int], told: str) -> None:
    """Nothing is left out, and nothing is written that nobody reads."""
    script = f"from tracehook import _core; _core.make_process('', 8); _core.push({event!r}, **{members!r})"
    assert python(script).err.splitlines()[-1] == f"ValueError: {told}"


@pytest.mark.parametrize("event", IN_THE_RING)
def test_an_event_shows_the_fields_of_its_row(event: str) -> None:
    """Each field has the type that the audit's column has."""
    about = ABOUT[event]
    wanted = {name: OF_SQL[of_sql] for name, of_sql in about.fields.items()}
    found: dict[str, type] = {}
    for number in (0, 1, 2, 5, records.OF_POOL | 1):
        own = {name: number if "64" in TYPES[kind].of_cpp else number & 0x7 for kind, name in about.parts("OWN")}
        own |= {name: bool(number) for kind, name in about.parts("OWN") if TYPES[kind].of_cpp == "bool"}
        (record,) = records.unpack(packed(event, result=number & 1, **own))
        name, fields = records.fields_of(record)
        assert name == event
        found |= {field: type(value) for field, value in fields.items() if value is not None}
    of_journal = {"exception", "message", "thread_name", "raised_at"} if "exception" in about.fields else set()
    assert found.keys() - {"seq", "t_ns"} == wanted.keys() - of_journal
    mixed = {"send_window", "receive_window"}
    assert {field: kind for field, kind in wanted.items() if field in found and field not in mixed} == {
        field: kind for field, kind in found.items() if field in wanted and field not in mixed
    }


def test_every_type_is_shown_somehow() -> None:
    """Those of C++, and no others."""
    assert records.SHOW.keys() == {name for name, kind in TYPES.items() if kind.of_cpp}


def _pushed_by_python() -> Iterator[tuple[str, set[str]]]:
    """Yield the events that Python pushes, each time with the members that it gives."""
    for path in ROOT.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            function, name = call.func.attr, call.args[0]
            if function in PUSHES:
                texts = [part.value for part in ast.walk(name) if isinstance(part, ast.Constant)]
                events = [text for text in texts if text in ABOUT] or CHOSEN.get(ast.unparse(name), ())
                for event in events:
                    yield event, {word.arg for word in call.keywords if word.arg} | ADDED.get(function, set())


def test_every_event_of_the_ring_is_written() -> None:
    """C++ writes its struct, or does not compile; Python names all members, or the call would raise."""
    code = "".join(path.read_text() for path in (ROOT / "cpp").rglob("*.cpp") if path.parent.name != "events")
    structs = {name: struct for _, struct, name, *_ in rows("events/events.def")}
    of_cpp = {event for event in ABOUT if re.search(rf"\brow::{structs[event]}\b", code)}
    by_python = list(_pushed_by_python())
    assert of_cpp | {event for event, _ in by_python} == set(IN_THE_RING) - {"policy.expected"}, "0.1.0 wrote that one"
    for event, given in by_python:
        assert given - OF_HEAD == {name for _, name in ABOUT[event].parts("OWN")}, event
        assert "result" in given or ("result", "") not in ABOUT[event].parts("SHOW"), event


def _named_by_python() -> set[str]:
    """Return the names that Python gives to what it writes: keywords, and keys of dictionaries."""
    names: set[str] = set()
    for path in (path for room in ("log", "hook", "rehearsal") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                names |= {word.arg for word in node.keywords if word.arg}
            elif isinstance(node, ast.Dict):
                names |= {
                    key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
    return names


def test_every_field_that_python_adds_is_written() -> None:
    """Somewhere in the rooms that write lines."""
    assert {name for about in ABOUT.values() for _, name in about.parts("SAID")} <= _named_by_python()


@pytest.mark.parametrize(
    ("pushed", "compiles"),
    [
        ("row::PoolLimit{.wanted = 1, .held = 2}", True),
        ("row::PoolLimit{.wanted = 1}", False),
        ("row::DeregisterWindow{.pool_segment = 1, .addr = 2, .size = 3, .observed = true}, 0", True),
        ("row::DeregisterWindow{.pool_segment = 1, .addr = 2, .size = 3, .observed = true}", False),
    ],
)
def test_a_push_of_cpp_names_all_members(tmp_path: Path, pushed: str, compiles: bool) -> None:
    """One that lacks a member, or the result of the call, does not compile."""
    file = tmp_path / "push.cpp"
    file.write_text(
        '#include "events/event.h"\n'
        f"tracehook::events::Event pushed() {{ using namespace tracehook::events; return make_event({pushed}); }}\n"
    )
    run = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'cpp'}", str(file)]
    assert (subprocess.run(run, capture_output=True, check=False).returncode == 0) == compiles

"""Names behind the numbers of a log and of the native side, read from the tables that C++ is compiled with.

They lie in cpp/events. Every job with the hook on reads them once, in one to two milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

_CPP = files("tracehook") / "cpp"
_BREAK = re.compile(r'"\s+"')  # within a text of several lines
_ROW = re.compile(r'^([A-Z_]+)\(((?:[^"()]+|"[^"]*"|\([^()]*\))*)\)', re.MULTILINE)
_ARGUMENT = re.compile(r'"([^"]*)"|((?:[A-Z]+\([^)]*\)\s*)+|[^",\s][^",]*)')
_FIELD = re.compile(r"([A-Z]+)\((\w+)(?:, (\w+))?\)")
# Fields that are not called as the member that they come from.
_SHOWN: Final = {"thread": {"thread": "BIGINT"}, "result": {"ok": "BOOLEAN", "error": "INTEGER"}}


class Event(NamedTuple):
    """What events.def says of an event, besides its name."""

    is_line: bool  # Python writes it, and the ring never has it
    severity: str  # info, problem or warning
    row: str  # its fields, as they stand there
    sentence: str  # what happened; a {field} stands for its value
    refused: str  # what happened if its `ok` is false; "" if the sentence says that too

    def parts(self, how: str) -> list[tuple[str, str]]:
        """Return type and name of what its row has of one way: ``OWN``, ``SAID`` or ``SHOW`` (name and "")."""
        return [(kind, name) for way, kind, name in _FIELD.findall(self.row) if way == how]

    @property
    def fields(self) -> dict[str, str]:
        """The fields that it may have besides the common ones, and their types of SQL."""
        found: dict[str, str] = {}
        for how, kind, name in _FIELD.findall(self.row):
            found |= _SHOWN[kind] if how == "SHOW" else dict.fromkeys(_fields_of(kind, name), TYPES[kind].of_sql)
        return found


class OwnType(NamedTuple):
    """What types.def says of a type, besides its name."""

    of_cpp: str  # "": the ring has none
    of_sql: str


class Reason(NamedTuple):
    """Why the hook cannot follow the allocator, or registers nothing, and what to do."""

    event: str
    name: str
    advice: str


def rows(file: str) -> list[tuple[str, ...]]:
    """Return the rows of a table: the name of the macro and its arguments. events.def says how rows are written."""
    text = _BREAK.sub("", (_CPP / file).read_text(encoding="utf-8"))
    found = _ROW.findall(text)
    return [(macro, *(quoted or bare for quoted, bare in _ARGUMENT.findall(row))) for macro, row in found]


def field_of(kind: str, name: str) -> str:
    """Return how the field of a member of this type is called."""
    return name.removesuffix("ns") + "us" if kind == "nanoseconds" else name


def _fields_of(kind: str, name: str) -> tuple[str, ...]:
    """Return all fields that such a member can be."""
    match kind:
        case "hidden":
            return ()
        case "reason":
            return name, "advice"
        case "any_segment":
            return name, name.replace("segment", "pool_segment")
        case _:
            return (field_of(kind, name),)


def _names(file: str) -> tuple[str, ...]:
    """Return the last argument of each row, by number."""
    return tuple(row[-1] for row in rows(file))


_EVENT_ROWS = rows("events/events.def")

EVENTS: Final = tuple(name for _, _, name, *_ in _EVENT_ROWS)
"""Names of the events, by number."""

ABOUT: Final = {
    name: Event(macro == "LINE", severity, fields, sentence, "".join(refused))
    for macro, _, name, severity, fields, sentence, *refused in _EVENT_ROWS
}
"""The rows of the events, by name."""

HEAD: Final = tuple((kind, name) for _, kind, name, _ in rows("events/head.def"))
"""What the ring keeps of every event: type of C++ and name."""

TYPES: Final = {name: OwnType("".join(of_cpp), of_sql) for _, name, *of_cpp, of_sql in rows("events/types.def")}
"""The types of what an event has of its own."""

WARNINGS: Final = frozenset(name for name, row in ABOUT.items() if row.severity == "warning")
PROBLEMS: Final = frozenset(name for name, row in ABOUT.items() if row.severity == "problem")

OPERATIONS: Final = tuple(
    (row[3], row[6].removeprefix("k").lower(), row[7].removeprefix("k").lower())
    for row in rows("nccl/calls.def")
    if row[0] == "PLACED"
)
"""The collectives whose buffers the ranks compare, by number: name, and what they compare of the send buffer and of the
receive buffer (where it lies, whether it lies in a window, or nothing)."""

COUNTED: Final = tuple(row[3] for row in rows("nccl/calls.def") if row[0] in ("COUNTED", "TRANSFER"))
"""The other calls that are counted, by number."""

MODES: Final = _names("events/local_modes.def")
"""Who registers segments with new communicators, as ``SYMM_REGISTER_LOCAL`` says it, by number."""

KINDS: Final = _names("events/local_kinds.def")
"""Who registers segments with one communicator, by number."""

MEMORIES: Final = _names("events/memory_kinds.def")
"""What the memory of a segment is, by number."""

POOLS: Final = _names("events/pool_kinds.def")
"""From which pool of torch's allocator a segment is, by number."""

EFFECTS: Final = _names("events/effects.def")
"""What a local registration can do for NCCL, by number."""

ANSWERS: Final = _names("events/policy_answers.def")
"""Where a policy says that memory comes from, by number."""

HANDLES: Final = _names("events/handle_kinds.def")
"""How memory goes to another process, by number."""

REASONS: Final = {number: Reason(*row[2:]) for number, row in enumerate(rows("events/reasons.def"), 1)}
"""Why the hook cannot follow the allocator, or registers nothing, by number."""


class _Fields(dict[str, Any]):
    """The fields of an event that has them all."""

    def __missing__(self, _: str) -> str:
        return "?"


def said(event: Mapping[str, Any]) -> str:
    """Return the first sentence of the table of events about `event`, or what it says of a call that was refused."""
    name = event["event"]
    if name not in ABOUT:
        return str(name)
    about = ABOUT[name]
    if about.refused and event.get("ok") is False:
        sentence = about.refused
    else:
        sentence = about.sentence.partition(". ")[0].removesuffix(".")
    return sentence.format_map(_Fields(event))


def reason_of(number: int) -> Reason:
    """Return the reason with that number; a later version may know more of them."""
    return REASONS.get(number, Reason("", f"reason {number}", "see the log"))


def number_of(name: str) -> int:
    """Return the number of the reason called `name`."""
    return next(number for number, reason in REASONS.items() if reason.name == name)

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
_ROW = re.compile(r'^([A-Z_]+)\(([^")]*(?:"[^"]*"[^")]*)*)\)', re.MULTILINE)
_ARGUMENT = re.compile(r'"([^"]*)"|([^",\s][^",]*)')


class Event(NamedTuple):
    """What events.def says of an event, besides its name."""

    severity: str  # info, problem or warning
    fields: tuple[str, ...]  # its own, besides the common ones
    sentence: str  # what happened; a {field} stands for its value
    refused: str  # what happened if its `ok` is false; "" if the sentence says that too


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


def _names(file: str) -> tuple[str, ...]:
    """Return the last argument of each row, by number."""
    return tuple(row[-1] for row in rows(file))


_EVENT_ROWS = [row[2:] for row in rows("events/events.def")]

EVENTS: Final = tuple(name for name, *_ in _EVENT_ROWS)
"""Names of the events, by number."""

ABOUT: Final = {
    name: Event(severity, tuple(fields.split()), sentence, "".join(refused))
    for name, severity, fields, sentence, *refused in _EVENT_ROWS
}
"""The rows of the events, by name."""

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


def reason_of(number: int, event: str) -> Reason:
    """Return the reason with that number, which an event has; a later version may know more of them."""
    return REASONS.get(number, Reason(event, f"reason {number}", "see the log"))


def number_of(name: str) -> int:
    """Return the number of the reason called `name`."""
    return next(number for number, reason in REASONS.items() if reason.name == name)

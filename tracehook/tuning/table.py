"""A tuning table: how long calls take in plain, in symmetric and on registered memory of one kind of machine.

A JSON file. A table without times on registered memory has no word about them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

FORMAT = 1
MARGIN = 0.005  # by how much symmetric memory has to be faster; see docs/tuning.md
_MOST_BYTES = 1 << 26  # of a file: one of `tracehook tune` has some 20 KiB
_LARGEST = 1 << 50  # bytes of a buffer


class TableError(ValueError):
    """A file is no tuning table. The text says which, what was seen and what to do."""


@dataclass(frozen=True)
class Machine:
    """What a table is valid for, besides the size of the group."""

    gpu: str
    """Name of the GPU, as CUDA has it."""
    nccl: str
    """Version of NCCL, such as ``2.28.9``."""
    torch: str
    """Version of torch."""
    multicast: bool
    """Whether NCCL may use the multicast of NVLink switches (NVLS)."""

    def differences(self, other: Machine) -> list[str]:
        """Say what differs, one phrase a fact: this machine's value second."""
        mine, its = asdict(self), asdict(other)
        return [f"{name} {its[name]}, here {mine[name]}" for name in mine if mine[name] != its[name]]


class Row(NamedTuple):
    """What was measured over a row of sizes."""

    operation: str  # "all_reduce", "all_gather", ...
    dtype: str  # torch's name, such as "bfloat16"
    graph: bool  # replayed from a CUDA graph, or called eagerly
    ranks: int
    hosts: int


@dataclass(frozen=True)
class Point:
    """One size. Times are microseconds of one call: the median over repetitions of the slowest rank."""

    nbytes: int
    """Bytes of the larger buffer of the call."""
    plain_us: float
    symmetric_us: float
    gain: float
    """Plain / symmetric: above 1 symmetric memory is faster. The median of the repetitions' quotients, because what
    changes with time touches both."""
    spread: float = 0.0
    """Distance of the quartiles of these quotients."""

    def prefers_symmetric(self, margin: float) -> bool:
        """Whether symmetric memory is faster by more than `margin`. Plain memory wins ties."""
        return self.gain * (1 - margin) > 1


@dataclass(frozen=True)
class RegisteredPoint:
    """One size of a call in plain memory, not registered and registered with the communicator. As :class:`Point`."""

    nbytes: int
    """Bytes of the whole output; of the buffer, for a send."""
    plain_us: float
    registered_us: float
    gain: float
    """Plain / registered: above 1 the call is faster on registered memory."""
    spread: float = 0.0

    def pays(self, margin: float) -> bool:
        """Whether the call is faster on registered memory by more than `margin`."""
        return self.gain * (1 - margin) > 1


AnyPoint = TypeVar("AnyPoint", Point, RegisteredPoint)


@dataclass
class Table:
    """All that one run of ``tracehook tune`` measured."""

    machine: Machine
    margin: float = MARGIN
    rows: dict[Row, list[Point]] = field(default_factory=dict)
    registered: dict[Row, list[RegisteredPoint]] = field(default_factory=dict)
    """Empty if segments came from cudaMalloc, whose memory NCCL cannot use."""

    def find(self, kind: Row, nbytes: int) -> Point | None:
        """Return the largest measured size that is not above `nbytes`; None outside of the measured range."""
        points = self.rows.get(kind, ())
        if not points or nbytes > 2 * points[-1].nbytes - 1:
            return None
        return next((point for point in reversed(points) if point.nbytes <= nbytes), None)

    def sizes(self) -> list[tuple[int, int]]:
        """Return (ranks, hosts) of the groups that were measured."""
        return sorted({(kind.ranks, kind.hosts) for kind in self.rows})

    def dtype(self, operation: str, wanted: str | None) -> str | None:
        """Return the type whose times stand for `wanted`: itself, or one of its size, or else the first one."""
        known = list(dict.fromkeys(kind.dtype for kind in self.rows if kind.operation == operation))
        if wanted is None or wanted in known:
            return wanted or next(iter(known), None)
        return next((name for name in known if bits(name) == bits(wanted)), next(iter(known), None))

    @property
    def digest(self) -> str:
        """What is equal on ranks that hold equal tables: 16 hex digits."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()[:16]

    def as_json(self) -> str:
        """Return the file's text."""
        told: dict[str, Any] = {
            "tracehook_tuning": FORMAT,
            "machine": asdict(self.machine),
            "margin": self.margin,
            "rows": _told_rows(self.rows),
        }
        if self.registered:
            told["registered"] = _told_rows(self.registered)
        return json.dumps(told, indent=1) + "\n"


def bits(dtype: str) -> str:
    """Return the digits in the name of a type: ``16`` of ``bfloat16``. Types of one size take about one time."""
    return "".join(filter(str.isdigit, dtype))


def load(path: Path) -> Table:
    """Read a file.

    Raises:
        TableError: it cannot be read, is no table, or has another format.

    """
    try:
        if path.exists() and not path.is_file():  # one that nobody writes would never end
            raise TableError(f"{path}: no file: name the one that `tracehook tune` wrote")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise TableError(f"{path}: larger than {_MOST_BYTES} bytes: make a table with `tracehook tune`")
        told = json.loads(text)
    except TableError:
        raise
    except OSError as problem:
        raise TableError(f"{path}: {problem.strerror or problem}: make it with `tracehook tune`") from None
    except (ValueError, RecursionError) as problem:  # also text that is not UTF-8
        raise TableError(f"{path}: no JSON ({problem}): make it again with `tracehook tune`") from None
    if not isinstance(told, dict) or "tracehook_tuning" not in told:
        raise TableError(f"{path}: no tuning table: make one with `tracehook tune`")
    if told["tracehook_tuning"] != FORMAT:
        raise TableError(
            f"{path}: has format {told['tracehook_tuning']}, this version of tracehook reads {FORMAT}: make it again "
            "with `tracehook tune`"
        )
    try:
        rows, margin = dict(_rows(told["rows"], Point)), float(told["margin"])
        if not rows or not 0 <= margin < 1:
            raise ValueError(f"{len(rows)} rows and a margin of {margin}")
        return Table(Machine(**told["machine"]), margin, rows, dict(_rows(told.get("registered", ()), RegisteredPoint)))
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise TableError(f"{path}: damaged ({what}): make it again with `tracehook tune`") from None


def _rows(told: Iterable[Mapping[str, Any]], made: type[AnyPoint]) -> Iterator[tuple[Row, list[AnyPoint]]]:
    for row in told:
        kind = Row(**{name: row[name] for name in Row._fields})
        if [type(value) for value in kind] != [str, str, bool, int, int]:
            raise ValueError(f"the row {kind} has values of other types")
        points = sorted((_point(each, made) for each in row["points"]), key=lambda point: point.nbytes)
        if not points:
            raise ValueError(f"{kind.operation} has no sizes")
        yield kind, points


def _told_rows(rows: Mapping[Row, Iterable[AnyPoint]]) -> list[dict[str, Any]]:
    return [{**kind._asdict(), "points": [_told(point) for point in points]} for kind, points in sorted(rows.items())]


def _told(point: Point | RegisteredPoint) -> dict[str, float]:
    # All but the size as floats, or 10 and 10.0 had two digests.
    return {name: value if name == "nbytes" else float(value) for name, value in asdict(point).items()}


def _point(told: Mapping[str, Any], made: type[AnyPoint]) -> AnyPoint:
    nbytes, times = told["nbytes"], {name: float(value) for name, value in told.items() if name != "nbytes"}
    point = made(nbytes, **times)
    positive = (value for name, value in times.items() if name != "spread")
    if type(nbytes) is not int or not 0 < nbytes <= _LARGEST or not all(0 < each < math.inf for each in positive):
        raise ValueError(f"a size of {nbytes!r} bytes, or a time or gain, is no number above 0")
    return point

"""The dumps of torch's Flight Recorder in a directory, as plain rows: one file for each global rank.

A dump is a pickle. It is read as plain values only, after every one of its steps was looked at: one that would import,
call or make anything else is refused.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

_BY_NUMBER = re.compile(r"(\d{1,9})$")  # nccl_trace_rank_12
_VERSIONS = ("2",)  # majors of the dumps' format
_LARGEST = 256 << 20  # bytes of a dump
_DEEPEST = 64  # frames of a stack that are read
# Of a pickle: those that make plain values.
_STEPS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
"""
_PLAIN = frozenset(_STEPS.split())


class DumpError(Exception):
    """Why a dump cannot be used: one line, with the file's name."""


class Frame(NamedTuple):
    """One frame of a stack."""

    function: str
    file: str
    line: int


class RecordedGroup(NamedTuple):
    """A process group of torch. `ranks` are global."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Recorded:
    """One operation that torch recorded."""

    group: str  # its name
    operation: str  # as torch says it, such as _all_gather_base
    peer: int | None  # of a send or a receive: the rank in the group
    collective_seq_id: int
    p2p_seq_id: int
    sizes: tuple[int, ...]  # elements of each tensor: of its smaller side, which NCCL counts
    state: str
    created_ns: int  # by the wall clock
    frames: tuple[Frame, ...]  # the innermost first


@dataclass(frozen=True)
class Dump:
    """What one rank's recorder had."""

    file: Path
    groups: Mapping[str, RecordedGroup]  # by name
    records: Sequence[Recorded] = field(repr=False)  # the oldest first
    complete: bool  # none was overwritten


def find_dumps(directory: Path) -> dict[int, Path]:
    """Return the files of a directory whose names end in a rank's number. Raises :class:`DumpError` if none does."""
    try:
        files = sorted(file for file in directory.iterdir() if file.is_file())
    except OSError as problem:
        raise DumpError(f"{directory}: {problem.strerror}; expected the directory with torch's dumps") from problem
    found = {int(match[1]): file for file in files if (match := _BY_NUMBER.search(file.name))}
    if not found:
        raise DumpError(
            f"{directory}: no dump in it; expected files that end in a rank's number, as nccl_trace_rank_0, which "
            "torch writes where TORCH_FR_DUMP_TEMP_FILE says"
        )
    return found


def read_dump(file: Path) -> Dump:
    """Read one dump. Raises :class:`DumpError`."""
    try:
        if file.stat().st_size > _LARGEST:
            raise DumpError(f"{file.name}: larger than {_LARGEST >> 20} MiB, so it was not read")
        data = file.read_bytes()
    except OSError as problem:
        raise DumpError(f"{file.name}: {problem.strerror}") from problem
    value = _plain(data, file.name)
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, str) or "entries" not in value or "pg_config" not in value:
        raise DumpError(f"{file.name}: no dump of torch's Flight Recorder (it needs version, entries and pg_config)")
    if version.partition(".")[0] not in _VERSIONS:
        raise DumpError(
            f"{file.name}: format {version} is not known; expected {_VERSIONS[0]}.x, as torch 2.11 writes it"
        )
    try:
        entries = [dict(entry) for entry in value["entries"]]
        groups = {str(one["name"]): _group(one) for one in value["pg_config"].values()}
        complete = not entries or int(entries[0]["record_id"]) == 0
        return Dump(file, groups, [_record(entry) for entry in entries], complete)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise DumpError(f"{file.name}: a dump of torch's Flight Recorder with unknown contents ({what})") from problem


def _plain(data: bytes, name: str) -> Any:
    """Return the value of a pickle that makes plain values only."""
    try:
        for step, value, _ in pickletools.genops(data):
            if step.name not in _PLAIN:
                what = f"import {value}" if step.name in ("GLOBAL", "INST") else f"do {step.name}"
                raise DumpError(f"{name}: this pickle wants to {what}; refused, because dumps are plain values only")
            if "PUT" in step.name and isinstance(value, int) and value > len(data):
                raise ValueError("it remembers more than it has")
        return pickle.loads(data)
    except DumpError:
        raise
    except Exception as problem:  # whatever damaged bytes lead to
        raise DumpError(f"{name}: damaged, or no pickle ({type(problem).__name__}: {problem})") from problem


def _group(row: Mapping[str, Any]) -> RecordedGroup:
    ranks = tuple(int(rank) for rank in re.findall(r"\d+", str(row["ranks"])))
    return RecordedGroup(str(row["name"]), str(row["desc"]), ranks)


def _record(row: Mapping[str, Any]) -> Recorded:
    name, _, peers = str(row["profiling_name"]).rpartition(":")[2].partition(" ")  # nccl:recv 1<-0
    numbers = re.findall(r"\d+", peers)
    return Recorded(
        group=str(row["process_group"][0]),
        operation=name,
        peer=int(numbers[1]) if len(numbers) == 2 else None,
        collective_seq_id=int(row["collective_seq_id"]),
        p2p_seq_id=int(row["p2p_seq_id"]),
        sizes=_sizes(row["input_sizes"], row["output_sizes"]),
        state=str(row["state"]),
        created_ns=int(row["time_created_ns"]),
        frames=tuple(
            Frame(str(one["name"]), str(one["filename"]), int(one["line"]))
            for one in islice(row.get("frames", ()), _DEEPEST)
        ),
    )


def _sizes(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    sides = [[prod(int(length) for length in shape) for shape in side] for side in (inputs, outputs)]
    if len(sides[0]) == len(sides[1]):
        return tuple(map(min, *sides))
    return (min(sum(side) for side in sides),)

"""`tracehook audit` in a test: what it said, and the logs of a clean job of two ranks to damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from support.records import packed
from support.rehearsal import ROOT
from tracehook.commands import app
from tracehook.log import ring
from tracehook.log.records import RECORD_BYTES

GOLDEN = ROOT / "tests" / "audit" / "golden" / "clean"
CLEAN, FINDINGS, UNUSABLE = 0, 1, 2
_OTHER_JOBS = re.compile(r"tracehook \w+: the (newest of \d+ jobs|last attempt of job .+)")
BEGIN = {"event": "trace.begin", "schema": "1.2", "t_ns": 1, "time": "2026-11-21T12:00:00+00:00", "host": "h", "pid": 1}


class Audit:
    """One audit, in this process: its status, and what it said."""

    def __init__(self, directory: Path | str, *options: str) -> None:
        done = CliRunner().invoke(app, ["audit", *options, "--", str(directory)], env={"COLUMNS": "200"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        self.status, self.out, self.err = done.exit_code, done.stdout, done.stderr

    def __repr__(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.err}"

    def expect(self, status: int, *words: str) -> Audit:
        """Assert the status, that each of `words` was said, and that an error is one line.

        A directory with the logs of several jobs gets one line more: it tells which job this audit is of.
        """
        assert self.status == status, self
        errors = [line for line in self.err.splitlines() if not _OTHER_JOBS.match(line)]
        assert len(errors) == (status == UNUSABLE), self
        assert "Traceback" not in repr(self)
        for word in words:
            assert word in self.out + self.err, self
        return self

    def rules(self) -> set[str]:
        """Return the rules that have findings, of an audit with --json."""
        assert self.out, self
        return set(json.loads(self.out)["counts"])

    @classmethod
    def expect_only_in_vain(cls, directory: Path) -> None:
        """Assert that it finds nothing but registrations without effect, which torch's group nccl2 makes by itself."""
        found = json.loads(cls(directory, "--json").out)["findings"]
        assert {finding["rule"] for finding in found} == {"registered-in-vain"}, found


def log_of(logs: Path, rank: int = 1) -> Path:
    """Return the log of a rank."""
    (found,) = logs.glob(f"*.rank{rank}.*.jsonl")
    return found


def change(file: Path, how: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a file."""
    file.write_bytes(b"".join(how(file.read_bytes().splitlines(keepends=True))))


def with_begin(file: Path, **fields: Any) -> None:
    """Give the first line of a log other `fields`."""
    change(file, lambda lines: [json.dumps(json.loads(lines[0]) | fields).encode() + b"\n", *lines[1:]])


def insert(line: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a change: `line` stands in the midst."""
    return lambda lines: [*lines[:20], line + b"\n", *lines[20:]]


def event_line(**fields: Any) -> bytes:
    """Return the line of an event that says nothing, but for `fields`."""
    return json.dumps({"event": "policy.chosen", "seq": 1, "t_ns": 10**13, **fields}).encode()


def ring_of(events: int = 0, drained: int = 0, capacity: int = 16, pid: int = 7, first: int = 1) -> bytes:
    """Return a ring file that holds `events` events after `drained` that are in the log, numbered from `first`."""
    header = ring._HEADER.pack(ring.MAGIC, 4096, RECORD_BYTES, capacity, drained + events, drained, 0, 0, pid, 0)
    slots = [bytes(RECORD_BYTES)] * capacity
    for index in range(drained, drained + events):
        slots[index % capacity] = packed("policy.chosen", seq=first + index, t_ns=9_000_000_000_000 + index)
    return header.ljust(4096, b"\0") + b"".join(slots)

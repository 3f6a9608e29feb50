"""A rank is killed at a moment that nobody chose, 200 times: no event is lost, and the audit says who and with what."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import rehearse

from tracehook.audit import ring
from tracehook.audit.reader import LogError
from tracehook.audit.rules import Finding, check
from tracehook.audit.store import Store

KILLS = int(os.environ.get("TRACEHOOK_TEST_KILLS", "200"))
SEED = int(os.environ.get("TRACEHOOK_TEST_SEED", "1"))
AT_ONCE = 40  # rounds of one process: each killed rank leaves a ring of 6 MiB
QUICK = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
    "SYMM_REGISTER_TIMEOUT": "5",
}
# What the witness counts, and which event stands for it.
COUNTED = {
    "segment.alloc": "born",
    "segment.free": "freed",
    "register.local": "made",
    "deregister.local": "undone",
    "register.window": "windows",
    "deregister.window": "dropped",
    "communicator.pending": "communicators",
}
LONGEST_STEP = 80  # events; a group that begins or ends, with all that is registered
HELD = re.compile(r"it held (\d+) segments? \((.*?)\) and (\d+) registrations?(?:, (\d+) of them windows)?")


@dataclass
class Rank:
    """One rank of one round: what was noted, how it ended, and what its log and ring say."""

    rank: int
    status: int
    noted: dict[str, int] | None
    events: list[dict[str, Any]]
    files: list[Path] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return self.status < 0


def _ranks(directory: Path, store: Store | None, told: dict[str, Any]) -> list[Rank]:
    out = []
    for rank, (pid, status, noted) in enumerate(zip(told["pids"], told["statuses"], told["noted"], strict=True)):
        sql = """SELECT event.*, file FROM event JOIN process USING (process)
                 WHERE process.rank = ? AND seq IS NOT NULL AND event.event NOT LIKE 'trace.%' ORDER BY seq"""
        events = store.rows(sql, [rank]) if store is not None else []
        out.append(Rank(rank, status, noted, events, sorted(directory.glob(f"*.{pid}.*"))))
    return out


def _lost(rank: Rank) -> list[str]:
    """Return what is missing from the log of a rank, or too much in it."""
    numbers = [event["seq"] for event in rank.events]
    if numbers != list(range(1, len(numbers) + 1)):
        return [f"rank {rank.rank}: the events are numbered {numbers[:3]}...{numbers[-3:]}, {len(numbers)} of them"]
    if rank.noted is None:
        return []
    count: Counter[str] = Counter()
    wanted = Counter({name: rank.noted[name] for name in COUNTED.values()})
    best = None
    for index, event in enumerate(rank.events, start=1):
        if (name := COUNTED.get(event["event"])) is not None:
            count[name] += 1
        if +count == +wanted:
            best = index
    if best is None and +wanted:
        return [f"rank {rank.rank}: noted {dict(+wanted)}, and at no moment the log knows of the same: {dict(count)} in all"]
    if (after := len(rank.events) - (best or 0)) > LONGEST_STEP:
        return [f"rank {rank.rank}: {after} events after the last step"]
    return []


def _held(rank: Rank) -> tuple[int, str, int, int]:
    """Return what the rank held when its events end: segments, their bytes, registrations, windows among these."""
    segments: dict[int, int] = {}
    held: set[tuple[int, str, int]] = set()
    for event in rank.events:
        match event["event"].split("."):
            case ["segment", "alloc"]:
                segments[event["segment"]] = event["size"]
            case ["segment", "free"]:
                del segments[event["segment"]]
            case ["register", ("local" | "window") as kind]:
                held.add((event["comm_id"], kind, event["segment"] or event["pool_segment"]))
            case ["deregister", ("local" | "window") as kind]:
                held.remove((event["comm_id"], kind, event["segment"] or event["pool_segment"]))
            case ["communicator", "abort"]:
                held = {each for each in held if each[0] != event["comm_id"]}
    size = sum(segments.values())
    unit = f"{size >> 20} MiB" if size % (1 << 30) else f"{size >> 30} GiB"
    return len(segments), unit if size else "0 bytes", len(held), sum(kind == "window" for _, kind, _ in held)


def _wrong(ranks: list[Rank], findings: list[Finding]) -> list[str]:
    """Return what the audit says and is not so, and what it does not say."""
    out = []
    for rank in ranks:
        said = [finding for finding in findings if finding.rule == "no-end" and finding.ranks == (rank.rank,)]
        if len(said) != (rank.killed and bool(rank.files)):
            out.append(f"rank {rank.rank} ended with {rank.status}, and the audit says: {said}")
        for finding in said:
            segments, size, registrations, windows = (
                (int(found[1]), found[2], int(found[3]), int(found[4] or 0))
                if (found := HELD.search(finding.message))
                else (-1, "", -1, -1)
            )
            if (segments, size, registrations, windows) != _held(rank):
                out.append(f"rank {rank.rank} held {_held(rank)}, and the audit says: {finding.message}")
    return out


def _torn(rank: Rank) -> bool:
    return any(file.suffix == ".jsonl" and not file.read_bytes().endswith(b"\n") for file in rank.files if file.stat().st_size)


EXPECTED = {"no-end"}


def judge(directory: Path, told: dict[str, Any], figures: Counter[str]) -> list[str]:
    """Return what is wrong with one round."""
    try:
        store = Store(directory)
    except LogError as problem:
        store = None
        if any(directory.glob("*")):
            return [str(problem)]
    try:
        ranks = _ranks(directory, store, told)
        findings = check(store) if store is not None else []
    finally:
        if store is not None:
            store.close()
    out = [line for rank in ranks for line in _lost(rank)]
    out += _wrong(ranks, findings)
    for finding in findings:
        figures[finding.rule] += 1
        if finding.rule not in EXPECTED:
            out.append(f"{finding.rule} {finding.ranks}: {finding.message}")
    return out

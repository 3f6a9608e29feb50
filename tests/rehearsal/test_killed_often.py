"""A rank is killed at a moment that nobody chose: no event is lost, and the audit says who and with what.

TRACEHOOK_TEST_KILLS: how many rounds.
"""

import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.rehearsal import QUICK, rehearse

from tracehook.audit.finding import Finding
from tracehook.audit.rules import check
from tracehook.audit.store import Store

KILLS = int(os.environ.get("TRACEHOOK_TEST_KILLS", "20"))
SEED = int(os.environ.get("TRACEHOOK_TEST_SEED", "1"))
AT_ONCE = 10  # rounds of one process: each killed rank leaves a ring of 6 MiB
# What the job counts, and which event stands for it.
COUNTED = {
    "segment.alloc": "born",
    "segment.free": "freed",
    "register.local": "made",
    "deregister.local": "undone",
    "register.window": "windows",
    "deregister.window": "dropped",
    "communicator.pending": "communicators",
}
ALONE = 3  # exit status of a rank that noticed that the other one is gone
REMOTE_ERROR = 6  # ncclRemoteError
LONGEST_STEP = 80  # events; a group that begins or ends, with all that is registered
HELD = re.compile(r"held: (\d+) segments? \((.*?)\) and (\d+) registrations?(?:, (\d+) of them windows)?")


@dataclass
class Rank:
    """One rank of one round: what was noted, how it ended, and what its log and ring say."""

    rank: int
    status: int
    noted: dict[str, int] | None
    events: list[dict[str, Any]]
    ended: bool  # its log has its end
    files: list[Path] = field(default_factory=list)
    runs: bool = False  # as far as the audit can tell: another process has its number by now

    @property
    def killed(self) -> bool:
        """Whether it was killed, and not only after Python had ended: the C++ libraries take their time then."""
        return self.status < 0 and not self.ended

    @property
    def text(self) -> bytes:
        """What its log holds."""
        return b"".join(file.read_bytes() for file in self.files if file.suffix == ".jsonl")

    @property
    def torn(self) -> bool:
        """Whether the last line of its log is cut."""
        return not self.text.endswith(b"\n") and bool(self.text)


def _ranks(directory: Path, store: Store, told: dict[str, Any]) -> list[Rank]:
    out = []
    for rank, (pid, status, noted) in enumerate(zip(told["pids"], told["statuses"], told["noted"], strict=True)):
        sql = """SELECT event.*, file FROM event JOIN process USING (process)
                 WHERE process.rank = ? AND seq IS NOT NULL AND event.event NOT LIKE 'trace.%' ORDER BY seq"""
        events = store.rows(sql, [rank])
        sql = """SELECT seq FROM event JOIN process USING (process)
                 WHERE process.rank = ? AND event.event = 'trace.end'"""
        ended = bool(store.rows(sql, [rank]))
        files = sorted(directory.glob(f"*.{pid}.*"))
        out.append(Rank(rank, status, noted, events, ended, files, psutil.pid_exists(pid)))
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
        return [
            f"rank {rank.rank}: noted {dict(+wanted)}, and at no moment the log knows of the same: {dict(count)} in all"
        ]
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
            case ["register", ("local" | "window") as kind] if event["ok"]:
                held.add((event["comm_id"], kind, event["segment"] or event["pool_segment"]))
            case ["deregister", ("local" | "window") as kind] if event["ok"]:
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
        if not rank.runs and len(said) != (rank.killed and bool(rank.files)):
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


def _is_left(finding: Finding, ranks: list[Rank]) -> bool:
    """Whether a finding says truly what a rank that ended by itself had not undone."""
    (rank,) = (rank for rank in ranks if finding.ranks == (rank.rank,))
    _, _, held, windows = _held(rank)
    said = [re.search(rf"(\d+) {noun}", finding.message) for noun in ("registration", "window")]
    return not rank.killed and [int(found[1]) if found else 0 for found in said] == [held - windows, windows]


def _has_failed(finding: Finding, ranks: list[Rank]) -> bool:
    """Whether NCCL did refuse a rank what the finding names, as it does once the other one was killed."""
    (rank,) = (rank for rank in ranks if finding.ranks == (rank.rank,))
    others = [other for other in ranks if other is not rank]
    (event,) = (event for event in rank.events if event["seq"] == finding.seq)
    return not event["ok"] and event["error"] == REMOTE_ERROR and all(other.killed for other in others)


def _is_true(finding: Finding, ranks: list[Rank]) -> bool:
    """Whether a finding that is no `no-end` says what is so. Nobody broke a rule: few can be."""
    match finding.rule:
        case "missing-ranks":
            return finding.ranks == tuple(rank.rank for rank in ranks if not rank.files)
        case "left-at-end":
            return _is_left(finding, ranks)
        case "registration-failed":
            return _has_failed(finding, ranks)
        case "torn-line":
            return any(rank.torn for rank in ranks if finding.ranks == (rank.rank,))
        case "rank-failed":
            return any(rank.killed for rank in ranks if finding.ranks == (rank.rank,))
    return False


def judge(directory: Path, told: dict[str, Any]) -> tuple[list[str], int]:
    """Return what is wrong with one round, and how many events of killed ranks only a ring had."""
    if not directory.is_dir() or not any(directory.iterdir()):  # both were killed before either made a log
        return [f"noted {told['noted']}, and there is no log"] if any(told["noted"]) else [], 0
    with Store(directory) as store:
        ranks = _ranks(directory, store, told)
        findings = check(store)
    out = [line for rank in ranks for line in _lost(rank)]
    out += _wrong(ranks, findings)
    out += [f"rank {rank.rank} failed" for rank in ranks if rank.status >= 0 and rank.status != ALONE]
    for finding in findings:
        if finding.rule != "no-end" and not _is_true(finding, ranks):
            out.append(f"{finding.rule} {finding.ranks}: {finding.message}")
    return out, sum(event["recovered"] for rank in ranks if rank.killed for event in rank.events)


@pytest.mark.parametrize("first", range(0, KILLS, AT_ONCE))
def test_nothing_is_lost(tmp_path: Path, first: int) -> None:
    """What a killed rank had noted is in its log or its ring; the audit names it, what it held, and nothing else."""
    count = min(AT_ONCE, KILLS - first)
    job = ("killed_often.py", str(first), str(count), str(SEED), str(tmp_path))
    run = rehearse(*job, devices=2, env=QUICK | {"SYMM_REGISTER_TIMEOUT": "5"}, timeout=170)
    assert run.status == 0, run.output
    assert run.broken == [], run.output
    assert run.finished.orphans == 0, run.output
    told = run.facts()
    assert len(told) == count
    recovered, wrong = 0, []
    for number, facts in told.items():
        directory = tmp_path / f"{int(number):03}"
        lines, in_rings = judge(directory, facts)
        recovered += in_rings
        if lines:
            wrong.append(f"round {number}: {facts} {lines}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    assert wrong == [], "\n".join([*wrong, run.finished.err])
    assert recovered > 0, "no kill fell before events had reached the file"

"""What an audit says in the end: the findings that were asked for, and what was looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tracehook.audit import known_bugs
from tracehook.audit.finding import Finding, cause_of, first_finding, fold, is_divergence
from tracehook.audit.rules import rules
from tracehook.audit.store import Store
from tracehook.known import Bearing
from tracehook.log.lines import LogError
from tracehook.log.text import many, plural

_ABOUT_RANKS = "missing-ranks"
_QUIET = 10  # seconds; most programs call something in them


@dataclass(frozen=True)
class Filter:
    """Which findings are asked for: of one of `ranks`, of a communicator whose key begins with one of `comms`.

    Empty: all. Without `incomplete`, ranks that left no log are a finding.
    """

    ranks: Collection[int] = ()
    comms: Collection[str] = ()
    incomplete: bool = False

    @property
    def description(self) -> str:
        """What is asked for, in words."""
        about = [many_named("rank", sorted(self.ranks))] if self.ranks else []
        about += [f"communicator {', '.join(self.comms)}"] if self.comms else []
        return f"about {' and '.join(about)}" if about else ""

    def accepts(self, finding: Finding) -> bool:
        """Tell whether `finding` is asked for. One that names no rank or communicator concerns all of them."""
        if self.incomplete and finding.rule == _ABOUT_RANKS:
            return False
        if self.ranks and finding.ranks and not set(self.ranks) & set(finding.ranks):
            return False
        return not self.comms or finding.comm is None or finding.comm.startswith(tuple(self.comms))


@dataclass(frozen=True)
class Looked:
    """What was there to be looked at, in numbers. `ranks` are those that left a log."""

    jobs: tuple[str, ...]
    ranks: int
    processes: int
    running: int  # processes that still run
    hosts: int
    events: int
    recovered: int
    communicators: int
    segments: int
    registrations: int
    windows: int
    mappings: int
    used: int  # local registrations that NCCL was seen to use
    in_vain: int  # local registrations that it cannot use
    left_out: int  # segments that nobody registered, because NCCL could not use it
    between_hosts: int  # and those of communicators of several hosts
    pausable: int  # and those whose memory a library can take away
    left_out_by: dict[str, int]  # and those that a rule leaves out, by its name
    seconds: float
    quiet_seconds: float  # since one of those that still run logged or called anything
    proof_from: str | None  # ISO 8601, UTC: before, logs threw lines away; None: they tell everything
    shortened: int  # logs that did


@dataclass(frozen=True)
class Verdict:
    """The result of an audit."""

    directory: str
    looked: Looked
    findings: tuple[Finding, ...]
    rows: tuple[Finding, ...]  # the same; what ranks did alike is one
    diverged: bool  # the first row shows that ranks diverged
    others: int  # findings that were not asked for
    asked: str  # what was asked for, in words; empty: everything
    known: tuple[Bearing, ...]  # bugs that the first finding looks like
    files: tuple[str, ...]  # of the processes
    skipped: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every rule held, for what was asked."""
        return not self.findings

    @property
    def sentence(self) -> str:
        """What comes first and what to do now, or what was proved."""
        first = first_finding(self.rows)
        if first is not None:
            kind = "divergence" if self.diverged else "finding"
            moment = f"at {first.ns / 1e9:.3f} s" if first.ns is not None else "at no known moment"
            stop = "" if first.message.endswith((".", "!", "?")) else "."
            cause = f" This may be the cause: {before.message}." if (before := cause_of(first, self.rows)) else ""
            return f"First {kind}, {moment} ({first.rule}): {first.message}{stop}{cause} What to do now: {first.advice}"
        if self.others:
            there = "is" if self.others == 1 else "are"
            return f"No finding {self.asked}; there {there} {many(self.others, 'other finding')}."
        seen = self.looked
        if seen.proof_from is not None:
            return f"Clean from {seen.proof_from[:19]} UTC on: what the logs tell keeps {len(rules())} rules."
        if seen.running:
            return (
                f"Clean so far: {many(seen.running, 'process')} still {'runs' if seen.running == 1 else 'run'}, and no "
                f"rule of {len(rules())} is broken.{self._quiet}{self._effect}"
            )
        made = [many(seen.registrations, "registration"), many(seen.windows, "window")]
        if seen.mappings:
            made.append(f"{many(seen.mappings, 'mapping')} of peers' memory")
        return (
            f"Clean: {' and '.join(made)} on {many(seen.ranks, 'rank')}, made and undone in order: none of "
            f"{len(rules())} rules is broken "
            f"({many(seen.segments, 'segment')}, {many(seen.communicators, 'communicator')}).{self._effect}"
        )

    @property
    def _quiet(self) -> str:
        """Say that those that run did nothing for a while: they may hang where no rule sees it."""
        seconds = self.looked.quiet_seconds
        said = f" In the last {seconds:.0f} s no process logged or called anything: "
        return said + "`tracehook stacks DIR` says where they are." if seconds >= _QUIET else ""

    @property
    def _effect(self) -> str:
        """Say what NCCL made of the local registrations, if the logs know."""
        seen, said = self.looked, ""
        if seen.used:
            said += f" NCCL used {many(seen.used, 'local registration')}."
        if seen.in_vain:
            said += f" NCCL cannot use {many(seen.in_vain, 'local registration')}: they only cost time."
        if seen.left_out:
            it = "it" if seen.left_out == 1 else "them"
            said += (
                f" {many(seen.left_out, 'segment')} stayed unregistered, because NCCL cannot map {it} into "
                "other processes of the host; SYMM_REGISTER_MEMORY=vmm makes segments that it can map."
            )
        if seen.between_hosts:
            said += (
                f" {many(seen.between_hosts, 'segment')} stayed unregistered with communicators of several hosts, "
                "because NCCL may hang on registered memory there; SYMM_REGISTER_LOCAL=all registers all."
            )
        if seen.pausable:
            said += (
                f" {many(seen.pausable, 'segment')} stayed unregistered, because a library can take the memory away."
            )
        for name, count in seen.left_out_by.items():
            said += f" {many(count, 'segment')} stayed unregistered by choice ({name})."
        return said

    def as_json(self) -> dict[str, Any]:
        """Return it as what ``--json`` prints (docs/audit.md)."""
        first = first_finding(self.rows)
        told = self._told(first) if first is not None else None
        return {
            "version": 1,
            "directory": self.directory,
            "clean": self.clean,
            "sentence": self.sentence,
            "first_finding": told,
            "first_divergence": told if self.diverged else None,
            "looked": asdict(self.looked),
            "looks_like": [known_bugs.as_json(found) for found in self.known],
            "counts": Counter(finding.rule for finding in self.findings),
            "findings": [self._told(finding) for finding in self.findings],
            "other_findings": self.others,
            "skipped": list(self.skipped),
        }

    def _told(self, finding: Finding) -> dict[str, Any]:
        told = asdict(finding)
        process, _, _ = told.pop("process"), told.pop("divergence"), told.pop("calls")
        told["places"] = [place._asdict() for place in finding.places]
        return told | {"file": None if process is None else self.files[process]}


def judge(store: Store, findings: Sequence[Finding], wanted: Filter) -> Verdict:
    """Keep the findings that are asked for.

    Raises :class:`LogError` if the logs hold nothing of what is asked for, or nothing that could be proved.
    """
    place = store.directory.path
    processes = store.rows("SELECT file, rank, used_cuda, exception FROM process ORDER BY process")
    keys = store.rows("SELECT DISTINCT comm FROM communicator")
    known = {row["rank"] for row in processes} | {rank for finding in findings for rank in finding.ranks}
    if unknown := sorted(set(wanted.ranks) - known):
        raise LogError(f"{place}: no log of {many_named('rank', unknown)}, and no finding about it")
    for begins in wanted.comms:
        if not any(str(row["comm"]).startswith(begins) for row in keys):
            raise LogError(f"{place}: no communicator's key begins with {begins!r}")
    if not findings and not any(row["used_cuda"] for row in processes):
        why = "were the ranks started with SYMM_REGISTER_HOOK=1, and did they use CUDA yet?"
        if raised := next((row["exception"] for row in processes if row["exception"]), None):
            why = f"before that, {raised} ended a process: read the stderr of the job"
        none = f"{place}: {many(len(processes), 'log')} without any event of a device, so there is nothing to prove"
        raise LogError(f"{none}; {why}")
    asked = tuple(finding for finding in findings if wanted.accepts(finding))
    folded = fold(findings)
    rows = tuple(row for row in folded if wanted.accepts(row))
    first = first_finding(rows)
    diverged = first is not None and is_divergence(first, folded, _everybody(store, first.comm))
    ignored = sum(wanted.incomplete and finding.rule == _ABOUT_RANKS for finding in findings)
    files = tuple(row["file"] for row in processes)
    others = len(findings) - len(asked) - ignored
    foreign = tuple(store.directory.foreign)
    bugs = known_bugs.looks_like(store, first)
    return Verdict(str(place), _look(store), asked, rows, diverged, others, wanted.description, bugs, files, foreign)


def _everybody(store: Store, comm: str | None) -> set[int]:
    """Return the ranks of a communicator, or of the job: those that left a log."""
    sql = "SELECT rank FROM process WHERE rank IS NOT NULL AND NOT helper"
    if comm is not None:
        sql = "SELECT coalesce(rank, comm_rank) AS rank FROM communicator WHERE comm = ?"
    return {row["rank"] for row in store.rows(sql, [comm] if comm is not None else [])}


def _look(store: Store) -> Looked:
    (row,) = store.rows(
        """FROM (SELECT list(DISTINCT job ORDER BY job) FILTER (job IS NOT NULL AND counts) AS jobs,
                        count(DISTINCT coalesce(rank, -1 - process)) FILTER (counts) AS ranks, count(*) AS processes,
                        count(*) FILTER (runs AND counts) AS running, count(DISTINCT host) AS hosts,
                        coalesce(max(last_ns), 0) / 1e9 AS seconds,
                        coalesce(min(alive_ns - last_ns) FILTER (runs AND counts), 0) / 1e9 AS quiet_seconds,
                        strftime(min(began) + to_microseconds(max(proof_ns) // 1000),
                                 '%Y-%m-%dT%H:%M:%S.%gZ') AS proof_from,
                        count(proof_ns) AS shortened
                 FROM (SELECT *, rank IS NOT NULL OR used_cuda AS counts FROM process)),
                (SELECT count(*) AS events, count(*) FILTER (recovered) AS recovered,
                        count(*) FILTER (event = 'register.used') AS used,
                        count(*) FILTER (event = 'register.local' AND ok AND expected = 'none') AS in_vain FROM event),
                (SELECT count(*) FILTER (NOT again) AS segments,
                        count(*) FILTER (memory_kind = 'pausable' AND NOT again) AS pausable,
                        count(*) FILTER (between AND NOT again) AS between_hosts,
                        count(*) FILTER (memory_kind IN ('cudaMalloc', 'private') AND inside) AS left_out
                 FROM segment LEFT JOIN (SELECT process, device, bool_or(one_host) AS inside,
                                                bool_or(NOT one_host) AS between FROM communicator
                                         WHERE at_calls AND ranks > 1 GROUP BY ALL) USING (process, device)),
                (SELECT count(*) FILTER (kind = 'local') AS registrations,
                        count(*) FILTER (kind = 'window') AS windows FROM registration),
                (SELECT count(DISTINCT comm) AS communicators FROM communicator),
                (SELECT count(*) AS mappings FROM mapping)"""
    )
    by_rule = store.rows(
        """SELECT string_split(leaves_out, ',')[s.left_out[1] + 1] AS name, count(*) AS n
           FROM segment s JOIN process USING (process)
           WHERE memory_kind IS DISTINCT FROM 'pausable' AND NOT again
             AND s.left_out IS NOT NULL AND leaves_out IS NOT NULL
             AND EXISTS (FROM communicator c WHERE c.process = s.process AND c.device = s.device AND c.ranks > 1
                         AND c.local = 'own' AND NOT at_calls AND NOT list_has_all(coalesce(spared, []), s.left_out))
           GROUP BY name ORDER BY name"""
    )
    by = {each["name"] or "?": each["n"] for each in by_rule}
    return Looked(**{**row, "jobs": tuple(row["jobs"] or ()), "left_out_by": by})


def many_named(noun: str, names: Sequence[object]) -> str:
    """Name some things of a kind."""
    return f"{plural(len(names), noun)} {', '.join(map(str, names))}"

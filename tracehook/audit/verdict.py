"""What an audit says in the end: the findings that were asked for, and what was looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tracehook.audit.rules import Finding, first_divergence, rules
from tracehook.audit.store import Store

_ABOUT_RANKS = "missing-ranks"


@dataclass(frozen=True)
class Scope:
    """Which findings are asked for: of one of `ranks`, of a communicator whose key begins with one of `comms`.

    Empty: all. Without `incomplete`, ranks that left no log are a finding.
    """

    ranks: Collection[int] = ()
    comms: Collection[str] = ()
    incomplete: bool = False

    def holds(self, finding: Finding) -> bool:
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
    hosts: int
    events: int
    recovered: int
    communicators: int
    segments: int
    registrations: int
    windows: int
    mappings: int
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """The result of an audit."""

    directory: str
    looked: Looked
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every rule held."""
        return not self.findings

    @property
    def sentence(self) -> str:
        """One sentence: the first divergence, or what was proved."""
        first = first_divergence(self.findings)
        if first is not None:
            moment = f"at {first.ns / 1e9:.3f} s" if first.ns is not None else "at no known moment"
            return f"First divergence, {moment} ({first.rule}): {first.message}."
        seen = self.looked
        mapped = f", and {many(seen.mappings, 'mapping')} of peers' memory," if seen.mappings else ""
        return (
            f"Clean: {many(seen.registrations, 'registration')} and {many(seen.windows, 'window')} of "
            f"{many(seen.segments, 'segment')} with {many(seen.communicators, 'communicator')} on "
            f"{many(seen.ranks, 'rank')}{mapped} were made and undone as {len(rules())} rules demand."
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as what ``--json`` prints (docs/audit.md)."""
        first = first_divergence(self.findings)
        return {
            "version": 1,
            "directory": self.directory,
            "clean": self.clean,
            "sentence": self.sentence,
            "first_divergence": asdict(first) if first is not None else None,
            "looked": asdict(self.looked),
            "counts": _counts(self.findings),
            "findings": [asdict(finding) for finding in self.findings],
            "skipped": list(self.skipped),
        }


def judge(store: Store, findings: Sequence[Finding], scope: Scope) -> Verdict:
    """Keep the findings that are asked for."""
    asked = tuple(finding for finding in findings if scope.holds(finding))
    return Verdict(str(store.directory.path), _look(store), asked, tuple(store.directory.foreign))


def _look(store: Store) -> Looked:
    (row,) = store.rows(
        """SELECT (SELECT list(DISTINCT job ORDER BY job) FROM process WHERE job IS NOT NULL) AS jobs,
                  (SELECT count(DISTINCT coalesce(rank, -1 - process)) FROM process
                   WHERE rank IS NOT NULL OR used_cuda) AS ranks,
                  (SELECT count(*) FROM process) AS processes, (SELECT count(DISTINCT host) FROM process) AS hosts,
                  (SELECT count(*) FROM event) AS events, (SELECT count(*) FROM event WHERE recovered) AS recovered,
                  (SELECT count(DISTINCT comm) FROM communicator) AS communicators,
                  (SELECT count(*) FROM segment) AS segments,
                  (SELECT count(*) FROM registration WHERE kind = 'local') AS registrations,
                  (SELECT count(*) FROM registration WHERE kind = 'window') AS windows,
                  (SELECT count(*) FROM mapping) AS mappings,
                  (SELECT coalesce(max(last_ns), 0) / 1e9 FROM process) AS seconds"""
    )
    return Looked(**{**row, "jobs": tuple(row["jobs"] or ())})


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    out: dict[str, int] = {}
    for finding in findings:
        out[finding.rule] = out.get(finding.rule, 0) + 1
    return out


def many(count: int, noun: str) -> str:
    """Return a count and what was counted."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

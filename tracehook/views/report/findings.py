"""The findings of the audit as the page shows them: grouped by rule, the worst first, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracehook.audit.rules import SEVERITIES, Finding, Rule, first_divergence
from tracehook.views.report.words import in_seconds, rank_ranges, short

_MOST_ROWS = 10
_MOST_RANKS = 4


@dataclass
class Row:
    """One finding. `seconds` and `place` say where the pictures have it; None if they do not."""

    message: str
    ranks: str
    when: str
    seconds: float | None
    place: int | None


@dataclass
class Group:
    """The findings of one rule."""

    rule: str
    severity: str
    sentence: str
    count: int
    rows: list[Row] = field(default_factory=list)

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.count - len(self.rows)


@dataclass
class Verdict:
    """What the audit says. `first` is where things first went wrong."""

    errors: int
    warnings: int
    groups: list[Group]
    first: Row | None = None
    first_rule: str = ""


def judge(findings: Sequence[Finding], rules: Sequence[Rule], places: Mapping[int, int]) -> Verdict:
    """Group `findings`. `places` maps a global rank to its place in the pictures."""
    sentences = {rule.name: rule.sentence for rule in rules}
    groups: dict[str, Group] = {}
    for finding in findings:
        sentence = short(sentences.get(finding.rule, ""), 300)
        group = groups.setdefault(finding.rule, Group(short(finding.rule), finding.severity, sentence, 0))
        group.count += 1
        if len(group.rows) < _MOST_ROWS:
            group.rows.append(_row(finding, places))
    errors = sum(finding.severity == "error" for finding in findings)
    ordered = sorted(groups.values(), key=lambda group: _weight(group.severity))
    verdict = Verdict(errors, len(findings) - errors, ordered)
    first = first_divergence(findings)
    if first is not None:
        verdict.first, verdict.first_rule = _row(first, places), short(first.rule)
    return verdict


def _row(finding: Finding, places: Mapping[int, int]) -> Row:
    named = ", ".join(map(str, finding.ranks[:_MOST_RANKS]))
    if len(finding.ranks) > _MOST_RANKS:
        named = rank_ranges(finding.ranks)
    place = next((places[rank] for rank in finding.ranks if rank in places), None)
    seconds = None if finding.ns is None else finding.ns / 1e9
    return Row(short(finding.message, 600), named, in_seconds(finding.ns), seconds, place)


def _weight(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)

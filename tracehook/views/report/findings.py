"""The findings of the audit as the page shows them: grouped by rule, the worst first, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracehook.audit.finding import Finding, first_finding
from tracehook.audit.rules import SEVERITIES, Rule
from tracehook.views.report.phrases import in_seconds, rank_ranges, short

_MOST_ROWS = 10
_MOST_RANKS = 4


@dataclass
class ShownFinding:
    """One finding. `seconds` and `place` say where the pictures have it; None if they do not."""

    message: str
    ranks: str
    when: str
    seconds: float | None
    place: int | None
    advice: str


@dataclass
class Group:
    """The findings of one rule."""

    rule: str
    severity: str
    sentence: str
    advice: str
    count: int
    rows: list[ShownFinding] = field(default_factory=list)

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.count - len(self.rows)


@dataclass
class Findings:
    """All that the page shows of them. `first` is where things first went wrong."""

    errors: int
    warnings: int
    groups: list[Group]
    first: ShownFinding | None = None
    first_rule: str = ""


def group_findings(findings: Sequence[Finding], rules: Sequence[Rule], places: Mapping[int, int]) -> Findings:
    """Group `findings`. `places` maps a global rank to its place in the pictures."""
    sentences = {rule.name: rule.sentence for rule in rules}
    groups: dict[str, Group] = {}
    for finding in findings:
        sentence = short(sentences.get(finding.rule, ""), 300)
        group = groups.setdefault(
            finding.rule, Group(short(finding.rule), finding.severity, sentence, short(finding.advice, 300), 0)
        )
        group.count += 1
        if len(group.rows) < _MOST_ROWS:
            group.rows.append(_shown(finding, places))
    errors = sum(finding.severity == "error" for finding in findings)
    ordered = sorted(groups.values(), key=lambda group: SEVERITIES.index(group.severity))
    shown = Findings(errors, len(findings) - errors, ordered)
    first = first_finding(findings)
    if first is not None:
        shown.first, shown.first_rule = _shown(first, places), short(first.rule)
    return shown


def _shown(finding: Finding, places: Mapping[int, int]) -> ShownFinding:
    named = ", ".join(map(str, finding.ranks[:_MOST_RANKS]))
    if len(finding.ranks) > _MOST_RANKS:
        named = rank_ranges(finding.ranks)
    place = next((places[rank] for rank in finding.ranks if rank in places), None)
    seconds = None if finding.ns is None else finding.ns / 1e9
    return ShownFinding(
        short(finding.message, 600), named, in_seconds(finding.ns), seconds, place, short(finding.advice, 300)
    )

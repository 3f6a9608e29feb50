"""What a rule found, findings of ranks that did alike as one, and which finding is the first.

A rule says of itself (``-- divergence: ...``) whether its findings show that ranks diverged:

* ``always``: it compares ranks;
* ``unless all``: they do not if all ranks, of the communicator or of the job, have a finding of the rule;
* ``unless alike``: they do not if these findings are one (:func:`fold`);
* ``never``: it is about one process's log or settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tracehook.log.text import ranks_in_words

WAITS = ("rank-missing", "ranks-hung")
DIFFER = ("calls-differ", "rule-broken")
OUTSIDE = "it computes, or waits outside of NCCL"
UNDECIDED = "their calls cannot tell which of them is wrong"
_OWN = re.compile(r"\b\d+\.\d{3}(?= m?s\b)| at 0x[0-9a-f]+")  # times and addresses, each process's own
_VERBS = {"was": "were", "is": "are", "has": "have"}
_VERB = re.compile(rf"((?:^|; )ranks [\d, -]+) ({'|'.join(_VERBS)})\b")


class ProgramPlace(NamedTuple):
    """Where a rank was in its program, and for what it waited there, if that is known."""

    rank: int
    file: str
    line: int
    function: str
    waits_for: str | None = None
    caller: str = ""  # where the program called that function, as ``train.py:41 in step``; empty: from outside of one


@dataclass(frozen=True)
class Finding:
    """Something that should not be. `ns`: nanoseconds since the job began; `ranks`: culprits first.

    `advice`: what to do. `divergence`: whether it shows that ranks diverged. `calls`: those that the
    message names, each as the number of its process and its place in the order of that process.
    `places`: where ranks were in their programs.
    """

    rule: str
    severity: str
    message: str
    ranks: tuple[int, ...]
    comm: str | None
    process: int | None
    ns: int | None
    seq: int | None
    advice: str = ""
    divergence: str = "never"
    calls: tuple[tuple[int, int], ...] = ()
    places: tuple[ProgramPlace, ...] = ()


def fold(findings: Sequence[Finding]) -> list[Finding]:
    """Make one finding of those of a rule whose messages differ by rank, times and addresses only. The order stays.

    The first, second, ... such finding of each rank go together: what one rank did twice stays two.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    count: Counter[tuple[object, ...]] = Counter()
    for number, finding in enumerate(findings):
        if len(finding.ranks) != 1:
            groups[(number,)] = [finding]
            continue
        skeleton = (finding.rule, finding.severity, finding.comm, _OWN.sub("#", _without_rank(finding, "rank #")))
        count[skeleton, finding.ranks] += 1
        groups.setdefault((*skeleton, count[skeleton, finding.ranks]), []).append(finding)
    return [_one(group) for group in groups.values()]


def _without_rank(finding: Finding, instead: str) -> str:
    return re.sub(rf"\b[Rr]ank {finding.ranks[0]}\b", instead, finding.message)  # torch writes it large


def _one(alike: Sequence[Finding]) -> Finding:
    first = alike[0]
    if len(alike) == 1:
        return first
    ranks = tuple(sorted(finding.ranks[0] for finding in alike))
    spans = iter([_span(values) for values in zip(*(_OWN.findall(one.message) for one in alike), strict=True)])
    message = _OWN.sub(lambda _: next(spans), _without_rank(first, ranks_in_words(ranks)))
    message = _VERB.sub(lambda found: f"{found[1]} {_VERBS[found[2]]}", message)
    return replace(first, message=message, ranks=ranks, calls=tuple(call for one in alike for call in one.calls))


def _span(values: Iterable[str]) -> str:
    """Return a value that all have, from when to when they were, or no address."""
    known = list(dict.fromkeys(values))
    if len(known) == 1:
        return known[0]
    if " at 0x" in known[0]:
        return ""
    return f"{min(known, key=float)}-{max(known, key=float)}"


_LAST = 1 << 62
_OF_GROUPS = re.compile(r"\bDist\w*Error\b|NCCL|gloo")  # exceptions that tell a rank of the fault of another one


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the earliest first; those of no known moment come last."""
    return sorted(findings, key=_when)


def first_finding(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding where things first went wrong: the earliest error, or else the earliest warning."""
    found = list(findings)
    errors = [finding for finding in found if finding.severity == "error"]
    return min(errors or found, key=_when, default=None)


def cause_of(first: Finding, rows: Iterable[Finding]) -> Finding | None:
    """Return an exception of the rank that the first finding names first, if it may be the cause.

    It ended a thread, which the rank may need. Or it ended the rank, which made its last calls on the way out, as in a
    ``finally``. Of an end only what was before can be the cause; of a wait, whenever it was.
    """
    for row in rows:
        if row is first or not first.ranks or first.ranks[0] not in row.ranks:
            continue
        if row.rule == "thread-exception" and (first.rule in WAITS or _when(row) <= _when(first)):
            return row
        is_own = len(row.ranks) == 1 and not _OF_GROUPS.search(row.message)
        if row.rule == "ended-by-exception" and first.rule in (*WAITS, *DIFFER) and is_own:
            return row
    return None


def is_divergence(row: Finding, rows: Iterable[Finding], everybody: Collection[int]) -> bool:
    """Tell whether ranks diverged: one did what another one of `everybody` did not. `rows` are folded."""
    if row.divergence in ("always", "never"):
        return row.divergence == "always"
    same = [one for one in rows if (one.rule, one.comm) == (row.rule, row.comm)]
    did = {rank for one in ([row] if row.divergence == "unless alike" else same) for rank in one.ranks}
    return bool(did) and not set(everybody) <= did


def _when(finding: Finding) -> tuple[int, int, str, str]:
    return (finding.ns if finding.ns is not None else _LAST, finding.seq or 0, finding.rule, finding.message)

"""In what order findings stand, which of them is the first, and whether it shows that ranks diverged.

A rule says of itself (``-- divergence: ...``) whether its findings do:

* ``always``: it compares ranks;
* ``unless all``: they do not if all ranks, of the communicator or of the job, have a finding of the rule;
* ``unless alike``: they do not if these findings are one (:func:`~tracehook.audit.finding.fold`);
* ``never``: it is about one process's log or settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tracehook.audit.finding import Finding

_LAST = 1 << 62


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the earliest first; those of no known moment come last."""
    return sorted(findings, key=_when)


def first_finding(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding where things first went wrong: the earliest error, or else the earliest warning."""
    found = list(findings)
    errors = [finding for finding in found if finding.severity == "error"]
    return min(errors or found, key=_when, default=None)


def is_divergence(row: Finding, rows: Iterable[Finding], everybody: Collection[int]) -> bool:
    """Tell whether ranks diverged: one did what another one of `everybody` did not. `rows` are folded."""
    if row.divergence in ("always", "never"):
        return row.divergence == "always"
    same = [one for one in rows if (one.rule, one.comm) == (row.rule, row.comm)]
    did = {rank for one in ([row] if row.divergence == "unless alike" else same) for rank in one.ranks}
    return bool(did) and not set(everybody) <= did


def _when(finding: Finding) -> tuple[int, int, str, str]:
    return (finding.ns if finding.ns is not None else _LAST, finding.seq or 0, finding.rule, finding.message)

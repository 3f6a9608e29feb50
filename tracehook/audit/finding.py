"""Something that should not be, as the rules and the analysis of calls report it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that should not be. `ns`: nanoseconds since the job began; `ranks`: culprits first."""

    rule: str
    severity: str
    message: str
    ranks: tuple[int, ...]
    comm: str | None
    process: int | None
    ns: int | None
    seq: int | None

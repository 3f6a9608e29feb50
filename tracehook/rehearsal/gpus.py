"""The devices that a rehearsal can play, from cpp/rehearsal/cuda/gpus.def."""

from __future__ import annotations

from tracehook.log.tables import rows

NAMES = tuple(row[1] for row in rows("rehearsal/cuda/gpus.def"))
"""What ``--gpu`` takes."""


def named(text: str) -> str | None:
    """Return the name that is meant, whatever its case; None if there is none."""
    return next((name for name in NAMES if name.lower() == text.lower()), None)

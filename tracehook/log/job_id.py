"""The ids that tracehook makes for jobs."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

_FORM = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


def make() -> str:
    """Return a new id, such as ``20261121-140500-5f0c3a``: they sort by time, and two of one second differ."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"  # random numbers of the program stay as they are


def is_made(text: str) -> bool:
    """Whether tracehook made this id, and no person and no launcher."""
    return _FORM.fullmatch(text) is not None

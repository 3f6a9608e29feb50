"""How an event becomes a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_encode = json.JSONEncoder(separators=(",", ":")).encode  # found now: the program may replace json.dumps


def dumps(event: Mapping[str, Any]) -> bytes:
    """Return the line of an event, its name first: lines of one kind line up when a person reads them."""
    rest = {key: value for key, value in event.items() if key != "event"}
    return _encode({"event": event["event"], **rest}).encode()

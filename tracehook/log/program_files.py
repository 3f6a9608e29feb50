"""Which files of stacks are the program's: its lines say where a rank is, and those of libraries do not."""

from __future__ import annotations

import re

_LIBRARY = re.compile(
    r"-packages/|/lib(?:64)?/python3\.\d+/|/torch/|^<"
    r"|/tracehook/(?:__\w+__|ddp|fsdp|_autoload|hook|log|agreement|symmetric_memory|integrations|ipc|rehearsal)\b"
)


def is_of_program(file: str) -> bool:
    """Return whether a file, as a frame of Python names it, is no library's."""
    return not _LIBRARY.search(file)

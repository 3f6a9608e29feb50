"""Which files give this process its NCCL, and whether one of them registers nothing although it says that it does."""

from __future__ import annotations

import mmap
from pathlib import Path

# MSCCL++ has a libnccl to put in front of NCCL, and UCCL one that was made from it: both carry out some collectives by
# themselves. Their registrations of memory and windows only write a line with these words, and return success.
_ONLY_WARNS = b"currently unavailable"
_MAKERS = {b"mscclpp": "MSCCL++", b"uccl": "UCCL"}


def loaded(maps: Path = Path("/proc/self/maps")) -> list[Path]:
    """Return the files of this process that are called after NCCL and hold code, without NCCL's plug-ins."""
    mapped = (
        line.split(maxsplit=5)
        for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        if "nccl" in line
    )
    files = {Path(fields[5]) for fields in mapped if len(fields) == 6 and "x" in fields[1]}
    return sorted(file for file in files if "nccl" in file.name and not file.name.startswith("libnccl-"))


def pretender(file: Path) -> str | None:
    """Return whose library it is if its registrations do nothing; None if it is NCCL itself, or cannot be read."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(_ONLY_WARNS) < 0 or content.find(b"ncclCommRegister") < 0:
                return None
            return next((maker for mark, maker in _MAKERS.items() if content.find(mark) >= 0), "an unknown maker")
    except (OSError, ValueError):  # ValueError: an empty file
        return None

"""The folders of one job's logs: the directory itself, or a folder for each host in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from tracehook.log.text import encodable

HOST: Final = "%h"


def own_host() -> str:
    """Return the name of this host, as logs have it."""
    return encodable(socket.gethostname())


def of_this_host(directory: Path) -> Path:
    """Return a directory with the name of this host for each ``%h`` in it."""
    text = str(directory)
    return Path(text.replace(HOST, safe(socket.gethostname()))) if HOST in text else directory


def folders_in(directory: Path) -> list[Path]:
    """Return the directory and the folders in it, in the order of their names; no hidden ones and no links.

    Raises OSError if the directory cannot be read.
    """
    with os.scandir(directory) as entries:
        inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    return [directory, *(directory / name for name in sorted(inside))]


def safe(text: str) -> str:
    """Return text that is one part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)

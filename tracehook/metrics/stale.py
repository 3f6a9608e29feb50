"""Files of metrics whose processes are gone."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

KEPT = 3600.0  # seconds after the last write
NEW = ".new"  # what the name of a file ends with until it is whole; Prometheus' node_exporter reads only *.prom
_OURS = re.compile(r"tracehook\.[^.]*\.rank[^.]*\.[^.]*\.\d+\.prom(\.new)?")


def remove_stale(own: Path) -> None:
    """Remove the files that nobody has written for an hour, by the clock of the file system that has just got `own`.

    A process that lives writes far more often. Who stood still for so long makes its file anew.
    """
    now = own.stat().st_mtime
    for file in own.parent.iterdir():
        if file != own and _OURS.fullmatch(file.name):
            with contextlib.suppress(OSError):  # another process was faster
                if now - file.lstat().st_mtime > KEPT:
                    file.unlink()

"""Processes of a rehearsal that made communicators, and in which the hook had to start and did not.

The emulated NCCL writes a mark when a process makes a communicator (cpp/rehearsal/nccl/maker.h). It does so only if the
process has torch, and if SYMM_REGISTER_HOOK and SYMM_REGISTER_LOG ask for a log. The hook makes its log while torch is
imported, and writes into it why it cannot attach to the allocator.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tracehook.log.file_name import told_by

_MARK = "maker."
_NOT_ATTACHED = ("no_hook_library", "attach_failed")
_FIRST_LINES = 2000  # of a log: the hook attaches when CUDA comes up


def told(scratch: Path, directory: Path) -> str:
    """Return in one line in which processes the hook did not start, and what to do; "" if it did in all."""
    marks = (mark for mark in scratch.glob(f"{_MARK}*") if mark.read_bytes() == os.fsencode(directory.absolute()))
    made = {int(mark.name.removeprefix(_MARK)) for mark in marks}
    if not made:
        return ""
    if not directory.is_dir():
        return f"the logs are gone: somebody removed or moved {directory} while the job ran"
    logs = _logs(directory)
    unlogged = sorted(pid for pid in made if pid not in logs)
    unattached = sorted(pid for pid in made if pid in logs and _is_unattached(logs[pid]))
    parts = []
    if unlogged:
        parts.append(f"{_processes(unlogged)} made communicators and no log: expected tracehook to start with torch")
    if unattached:
        parts.append(f"{_processes(unattached)} made communicators, and tracehook is not attached to the allocator")
    if not parts:
        return ""
    return (
        f"the hook of --log did not start: {'; '.join(parts)}. Look above for a line that begins with `tracehook`, and "
        "run `tracehook doctor`"
    )


def _logs(directory: Path) -> dict[int, list[Path]]:
    found = defaultdict(list)
    for path in directory.glob("*.jsonl*"):
        named = told_by(path.name)
        if named is not None:
            found[named.pid].append(path)
    return found


def _is_unattached(logs: Iterable[Path]) -> bool:
    for path in logs:
        if path.suffix != ".jsonl":
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in itertools.islice(lines, _FIRST_LINES):
                if '"hook.unsupported"' in line and _reason(line) in _NOT_ATTACHED:
                    return True
    return False


def _reason(line: str) -> object:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event.get("reason") if isinstance(event, dict) else None


def _processes(pids: list[int]) -> str:
    return f"{len(pids)} process{'es' if len(pids) > 1 else ''} (pid {', '.join(map(str, pids))})"

"""Where the log of this process goes, and what its first line says of the process."""

from __future__ import annotations

import os
import platform
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracehook import __version__
from tracehook.hook import known_bugs
from tracehook.hook.job import JobId
from tracehook.log import ring_place
from tracehook.log.bound import Bound
from tracehook.log.file_name import make_log
from tracehook.log.folders import own_host
from tracehook.log.stderr import warn
from tracehook.log.text import encodable, number_in
from tracehook.nccl.segment_rules import SegmentRule
from tracehook.settings import Settings


def new_log(directory: Path | None, job: str | None) -> tuple[Path, int] | tuple[None, None]:
    """Return path and descriptor of the log of this process; None, and perhaps one line on stderr, if it has none."""
    if directory is None:
        return None, None
    unusable = why_unusable(directory)
    if unusable:
        warn(f"no log: SYMM_REGISTER_LOG={unusable}")
        return None, None
    try:
        return make_log(directory, job)
    except OSError as problem:
        warn(f"no log: {problem.filename} cannot be made ({problem.strerror}); the job goes on")
        return None, None


def bound(config: Settings) -> Bound:
    """Return how large the log may get."""
    return Bound(config.log_limit, ring_place.capacity(config.log_limit))


def why_unusable(directory: Path) -> str:
    """Make a directory for logs, if there is none; return why that cannot be, or nothing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        return f"{str(directory)!r} cannot be made a directory ({problem.strerror})"
    return "" if os.access(directory, os.W_OK) else f"{str(directory)!r} is not writable for this user"


def begin_fields(
    torch: Any, nccl: int, config: Settings, job: JobId, rules: Sequence[SegmentRule] = ()
) -> dict[str, Any]:
    """Return what the first line of the log says of this process."""
    environment = os.environ
    return {
        "tracehook": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "python": platform.python_version(),
        "host": own_host(),
        "pid": os.getpid(),
        "job": encodable(job.id or "") or None,
        **({"launcher_job": encodable(job.launcher)} if job.launcher else {}),
        "attempt": number_in(environment.get("TORCHELASTIC_RESTART_COUNT", "")),
        "rank": number_in(environment.get("RANK", "")),
        "world_size": number_in(environment.get("WORLD_SIZE", "")),
        "allocator": encodable(known_bugs.allocator_settings(environment)),
        "policy": [encodable(name) for name in config.policy],
        "local": config.local,
        "segments": [encodable(name) for name in config.segments],
        "leaves_out": [encodable(rule.name) for rule in rules],
        "segment_memory": config.memory,
        "guard": config.guard,
        "timeout": config.timeout,
        "check": config.check,
        "integrations": list(config.integrations or ()),
        "pool_limit": config.pool_limit or 0,
        "log_limit": config.log_limit or 0,
        **known_bugs.surroundings(),
        "emulated": "TRACEHOOK_EMU_DEVICES" in environment,
        "program": _program(),
        "argv": [encodable(part) for part in getattr(sys, "argv", [])[:1]],
    }


def _program() -> str | None:
    """Return digests of the path of the program and of its text; None if it is no file."""
    try:
        path = Path(sys.modules["__main__"].__file__ or "").absolute()
        return f"{zlib.crc32(os.fsencode(path)):08x} {zlib.crc32(path.read_bytes()):08x}"
    except (AttributeError, KeyError, OSError, ValueError):
        return None

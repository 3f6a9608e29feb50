"""The names of one process's files: how they are made, and what they tell of a process that wrote nothing."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tracehook.log.folders import own_host, safe

_PART = re.compile(r"\.part(\d{1,9})$")
_STEM = re.compile(r"([^.]*)\.rank(\d{1,9}|-)\.([^.]*)\.(\d{1,9})(\.\d+)?")
_NO_JOB = "job"
_NEW = ".new"
STACKS = ".stacks"
PACKED = (".gz", ".zst")
_OTHERS = 3  # the first descriptor behind stdin, stdout and stderr
_LONGEST_JOB = 100  # characters; a file's name has 255 bytes


class Told(NamedTuple):
    """What a file's name tells of its process."""

    job: str | None
    rank: int | None
    pid: int
    host: str | None  # of this one, its name in logs; None: another one, or nobody knows


def file_stem(job: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``<job>.rank<R>.<host>.<pid>``: unique on shared storage, and readable in a directory listing."""
    name, rank = safe(job or _NO_JOB)[:_LONGEST_JOB], safe(environment.get("RANK", "-"))
    return f"{name}.rank{rank}.{safe(socket.gethostname())}.{os.getpid()}"


def make_log(directory: Path, job: str | None) -> tuple[Path, int]:
    """Make a new log of this process; return its path and a descriptor to append to. Its ring has the same name.

    No log is written over, and no link is followed. Raises OSError.
    """
    stem = file_stem(job)
    # A process may start anew (exec), and a container may give the same number again.
    names = itertools.chain([stem], (f"{stem}.{count}" for count in itertools.count(2)))
    taken = {stem_of(path.name) for path in directory.glob(f"{stem}.*")}
    for name in names:
        if name not in taken:
            path = directory / f"{name}.jsonl"
            with contextlib.suppress(FileExistsError):  # somebody else has just made it
                return path, new_file(path)
    raise AssertionError("there is always another name")


def new_file(path: Path) -> int:
    """Make a file to append to; return its descriptor. Raises OSError if anything has this name already."""
    return opened(path, os.O_CREAT | os.O_EXCL)


def opened(path: Path, more: int = 0) -> int:
    """Open a file to append to; return its descriptor. Raises OSError."""
    return above_streams(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC | more, 0o644))


def above_streams(fd: int) -> int:
    """Return a descriptor of ours that is none of stdin, stdout and stderr, which the program may have closed.

    Code in C would write into our file.
    """
    if fd >= _OTHERS:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OTHERS)
    finally:
        os.close(fd)


def stem_of(name: str) -> str:
    """Return what the files of one process have in common, of the name of any of them."""
    bare = name.removesuffix(_NEW)
    for suffix in (*PACKED, ".jsonl", ".ring", STACKS):
        bare = bare.removesuffix(suffix)
    return _PART.sub("", bare)


def stacks_of(log: Path) -> Path:
    """Return where the stacks of a process lie; `log`: any part of its log, or its ring beside it."""
    return log.with_name(f"{stem_of(log.name)}{STACKS}")


def part_of(name: str) -> int:
    """Return which part of its process's log a file is; the first one has no number in its name."""
    bare = name
    for suffix in (*PACKED, ".jsonl"):
        bare = bare.removesuffix(suffix)
    found = _PART.search(bare)
    return int(found[1]) if found else 1


def part_name(path: Path, number: int) -> Path:
    """Return the path of another part of the log whose part has `path`."""
    return path.with_name(f"{stem_of(path.name)}.part{number}.jsonl")


def new_name_of(path: Path) -> Path:
    """Return what a file is called until it is whole."""
    return path.with_name(path.name + _NEW)


def is_unfinished(name: str) -> bool:
    """Whether a file was never whole: its process was killed while it made it."""
    return name.endswith(f".jsonl{_NEW}")


def job_in(name: str) -> str:
    """Return the part of a file's name that all processes of its job share."""
    return name.partition(".")[0]


def told_by(name: str) -> Told | None:
    """Return what a file's name tells; None if tracehook gave it no name."""
    found = _STEM.fullmatch(stem_of(name))
    if found is None:
        return None
    job = found[1] if found[1] != _NO_JOB else None
    host = own_host() if found[3] == safe(socket.gethostname()) else None
    return Told(job, int(found[2]) if found[2] != "-" else None, int(found[4]), host)

"""A directory of logs: which files are one, and why the others are left out.

What lies between the first line of a log and the last ones is read by :mod:`tracehook.log.reader`, or, of very many
processes, by a database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tracehook.log.file import LogFile, open_log, open_ring
from tracehook.log.file_name import PACKED, STACKS, is_unfinished, job_in, part_of, stem_of
from tracehook.log.folders import folders_in
from tracehook.log.lines import LogError, NewerSchema, NotALog, whole_number
from tracehook.log.ring import RingError

_SUFFIXES = (".jsonl", *(f".jsonl{packed}" for packed in PACKED))
_KINDS = ", ".join((*_SUFFIXES, ".ring"))


@dataclass
class Directory:
    """The logs found, in the order of ranks, and one line for each file that could not be used."""

    path: Path
    logs: list[LogFile] = field(default_factory=list)
    misnamed: list[str] = field(default_factory=list)  # have the name of a log, and are none, or a second one
    others: list[str] = field(default_factory=list)  # files of other kinds
    unreadable: list[str] = field(default_factory=list)  # logs, or so it seems, that cannot be read
    newer: str = ""  # of these one whose schema is newer than this reader

    @property
    def foreign(self) -> list[str]:
        """All that are no logs."""
        return sorted(self.misnamed + self.others)


def find_logs(path: Path, scratch: Path, since: float = 0.0) -> Directory:
    """Find the logs of `path` that were written at or after `since` (seconds, as time.time()), and of its folders.

    Copies that have to be made go to `scratch`. Raises :class:`LogError` if there is no log, or `path` is no directory.
    """
    if not path.is_dir():
        raise LogError(f"{path}: not a directory; expected the one that SYMM_REGISTER_LOG named")
    found = Directory(path)
    parts: dict[Path, list[Path]] = {}  # of each log, by the stem of its files
    files = list(_files_in(path))
    there = set(files)
    for file in files:
        if file.suffix in PACKED and file.with_suffix("") in there:
            found.misnamed.append(f"{file}: stands beside it, unpacked")
        elif file.name.endswith(_SUFFIXES):
            parts.setdefault(file.parent / stem_of(file.name), []).append(file)
        elif file.suffix not in (".ring", STACKS) and file.parent == path:
            found.others.append(f"{file}: not a log (expected {_KINDS})")
    rings = [file for file in files if file.suffix == ".ring" and file.with_suffix("") not in parts]
    for log in (*parts.values(), *([ring] for ring in rings)):
        log.sort(key=lambda file: part_of(file.name))
        try:
            if since and log[-1].stat().st_mtime < since:
                continue
            found.logs.append(open_ring(log[0]) if log[0].suffix == ".ring" else open_log(log, scratch))
        except NotALog as problem:
            found.misnamed.append(str(problem))
        except OSError as problem:
            found.unreadable.append(f"{log[0]}: {problem.strerror or problem}")
        except (LogError, RingError) as problem:
            found.unreadable.append(str(problem))
            if isinstance(problem, NewerSchema):
                found.newer = found.newer or str(problem)
    if not found.logs:
        wrong = found.unreadable + found.foreign
        why = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise LogError(why or f"{path}: no .jsonl log in it; was SYMM_REGISTER_HOOK=1 set, and torch imported?")
    _complete(found.logs)
    _give_ranks(found.logs)
    found.misnamed += _take_copies_out(found.logs)
    found.logs.sort(key=place_of)
    return found


def _files_in(path: Path) -> Iterator[Path]:
    for folder in folders_in(path):
        with os.scandir(folder) as entries:
            named = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        # What has the name of a log, and is none, is named as such.
        files = (name for name, is_folder in named if not is_folder or name.endswith((*_SUFFIXES, ".ring")))
        names = sorted(name for name in files if not is_unfinished(name))
        yield from (folder / name for name in names)


def _complete(logs: list[LogFile]) -> None:
    """Give each log without a first line what is the same on all ranks of its job, which its name begins with."""
    told: dict[str, list[LogFile]] = {}
    for log in logs:
        if not log.headless:
            told.setdefault(job_in(log.path.name), []).append(log)
    for log in logs:
        if log.headless and (alike := told.get(job_in(log.path.name))):
            # Of several starts of a job it was in the last one that had begun when its file was made.
            like = max(alike, key=lambda other: (_before(other, log), other.began or datetime.min))
            log.begin |= {name: like.begin.get(name) for name in ("job", "attempt", "world_size")}


def _give_ranks(logs: list[LogFile]) -> None:
    """Give its rank to a process whose group ended before its log's thread looked: that in the others' communicator.

    That is its rank in the job if the communicator has all ranks, and those that are known have the same in both.
    """
    for log in logs:
        if log.told_rank is not None:
            continue
        for comm, birth in log.participation.communicators.items():
            place = whole_number(birth.get("comm_rank"), 1 << 31), whole_number(birth.get("ranks"))
            others = [each for each in logs if each.told_rank is not None and comm in each.participation.communicators]
            in_both = [
                (whole_number(each.participation.communicators[comm].get("comm_rank")), place[1]) for each in others
            ]
            if others and in_both == [(each.told_rank, each.world_size) for each in others]:
                log.begin |= dict(zip(("rank", "world_size"), place, strict=True))
                break


def _take_copies_out(logs: list[LogFile]) -> list[str]:
    """Leave one log of each process, the longest; return what to say of the others."""
    first: dict[tuple[object, ...], LogFile] = {}
    copies: set[int] = set()
    said = []
    for log in sorted(logs, key=lambda log: (log.left is None, -log.path.stat().st_size, log.path.name)):
        life = tuple(str(log.begin.get(name)) for name in ("host", "pid", "t_ns"))
        if "t_ns" in log.begin and (other := first.setdefault(life, log)) is not log:
            copies.add(id(log))
            said.append(f"{log.path}: another log of the process of {other.path.name}")
    logs[:] = [log for log in logs if id(log) not in copies]
    return said


def _before(one: LogFile, other: LogFile) -> bool:
    return one.began is not None and other.began is not None and one.began <= other.began


def place_of(log: LogFile) -> tuple[int, int, str]:
    """Return what logs are sorted by."""
    pid = whole_number(log.begin.get("pid"), 1 << 31)
    return (1 << 31 if log.rank is None else log.rank, pid or 0, log.path.name)

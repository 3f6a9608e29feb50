"""Where ranks were in their programs: the stacks that processes wrote beside their logs (docs/audit.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from tracehook.audit.finding import Finding, ProgramPlace, named
from tracehook.audit.flight_recorder import Frame
from tracehook.log.file_name import stacks_of

if TYPE_CHECKING:  # a rehearsal reads no database
    from tracehook.audit.store import Store

_RULES = ("rank-missing", "ranks-hung")
_MOST_BYTES = 2 << 20  # of a file that are read; a process writes fewer
_MOST_TOLD = 4  # places
_HEAD = re.compile(r"^tracehook stacks t_ns=(\d{1,19}) main=(0x[0-9a-f]{1,16})$", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]{1,16})\b.* \(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)
# In the file of a frame that is not the program's.
_LIBRARY = re.compile(
    r"-packages/|/lib(?:64)?/python3\.\d+/|/torch/|^<"
    r"|/tracehook/(?:__\w+__|ddp|fsdp|_autoload|hook|log|agreement|symmetric_memory|integrations|ipc|rehearsal)\b"
)


def program_line(stacks: Path, since_ns: int = 0) -> Frame | None:
    """Return the innermost line of the program in the newest stacks of a process, None if there is none.

    That is one of the main thread; if this has none, one of another thread. `since_ns`, by the clock of the process:
    older stacks do not count.
    """
    try:
        with stacks.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    heads = list(_HEAD.finditer(text))
    if not heads or int(heads[-1][1]) < since_ns:
        return None
    threads = list(_threads(text[heads[-1].end() :]))
    threads.sort(key=lambda thread: thread[0] != int(heads[-1][2], 16))
    return next((frame for _, frames in threads for frame in frames if not _LIBRARY.search(frame.file)), None)


def _threads(text: str) -> Iterator[tuple[int, list[Frame]]]:
    """Yield each thread, by its number, with its frames, the innermost first."""
    heads = list(_THREAD.finditer(text))
    for head, after in zip_longest(heads, heads[1:]):
        found = _FRAME.finditer(text, head.end(), after.start() if after is not None else len(text))
        yield int(head[1], 16), [Frame(frame[3], frame[1], int(frame[2])) for frame in found]


def quote(store: Store, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those of ranks that wait also say where in their programs the ranks were."""
    if not any(finding.rule in _RULES for finding in findings):
        return list(findings)
    rows = store.rows("SELECT process, rank, shift_ns FROM process WHERE rank IS NOT NULL AND NOT helper")
    of_rank = {row["rank"]: (store.directory.logs[row["process"]].path, row["shift_ns"] or 0) for row in rows}
    return [_quoted(finding, of_rank) if finding.rule in _RULES else finding for finding in findings]


def _quoted(finding: Finding, of_rank: dict[int, tuple[Path, int]]) -> Finding:
    places = []
    for rank in finding.ranks:
        if rank in of_rank:
            log, shift_ns = of_rank[rank]
            frame = program_line(stacks_of(log), (finding.ns or 0) - shift_ns)
            places += [place_of(rank, frame)] if frame is not None else []
    message = "; ".join([finding.message, *told_places(places)])
    return replace(finding, message=message, places=tuple(places))


def place_of(rank: int, frame: Frame) -> ProgramPlace:
    """Return where a rank is."""
    return ProgramPlace(rank, frame.file, frame.line, frame.function)


def told_places(places: Sequence[ProgramPlace]) -> list[str]:
    """Say where ranks were, in their order, such as ``rank 3 is at train.py:41 in step``."""
    said = []
    for at, alike in groupby(places, key=lambda place: place[1:]):
        ranks = sorted(place.rank for place in alike)
        said.append(f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'} at {Path(at[0]).name}:{at[1]} in {at[2]}")
    return said[:_MOST_TOLD]

"""Where ranks were in their programs: the stacks that processes wrote beside their logs (docs/audit.md)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, takewhile, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracehook.audit.finding import DIFFER, OUTSIDE, WAITS, Finding, ProgramPlace
from tracehook.audit.flight_recorder import Frame
from tracehook.log.file_name import stacks_of
from tracehook.log.program_files import is_of_program
from tracehook.log.text import plural, ranks_in_words

if TYPE_CHECKING:  # a rehearsal reads no database
    from tracehook.audit.store import Store

_ENDED = ("ended-by-others", "rank-failed")  # the first may be all that is known of a hang
_RULES = (*WAITS, *DIFFER, *_ENDED)
_JUST_BEFORE_NS = 2_000_000_000  # a finding about several ranks has the moment of the last
_OF_GROUPS = "/torch/distributed/distributed_c10d.py"
_RAISED = ("ended-by-exception", "thread-exception")
_MOST_BYTES = 2 << 20  # of a file that are read; a process writes fewer
_MOST_TOLD = 4  # places
_HEAD = re.compile(r"^tracehook stacks t_ns=(\d{1,19}) main=(0x[0-9a-f]{1,16})$", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]{1,16})\b.* \(most recent call first\):$", re.MULTILINE)
_PLACE = re.compile(r"^(.*):(\d{1,9}) in (.*)$", re.DOTALL)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)
_CHILD = re.compile(r"^child (\d{1,9}) ([A-Za-z]) (.*)$", re.MULTILINE)
# Functions and files in which a thread waits for a data loader (torch, torchdata), and what torch calls a worker.
_LOADER, _WAITS, _WORKER = re.compile(r"/\w*data_?loader\.py$"), ("_get_data", "_try_get_data"), "pt_data_worker"
_STATES = {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}


class ProgramLine(NamedTuple):
    """A line of the program in which a process is."""

    function: str
    file: str
    line: int
    waits_for: str | None = None  # if a library says for what
    caller: str = ""  # the line of another function that called this one
    group_call: str = ""  # the function of torch.distributed in which it is


def program_line(stacks: Path, since_ns: int = 0, first: bool = False) -> ProgramLine | None:
    """Return the innermost line of the program in the newest stacks of a process, None if there is none.

    That is one of the main thread; if this has none, one of another thread. `since_ns`, by the clock of the process:
    older stacks do not count. `first`: in the oldest ones that count.
    """
    try:
        with stacks.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    heads = [*_HEAD.finditer(text)]
    places = [place for place, head in enumerate(heads) if int(head[1]) >= since_ns]
    if not places:
        return None
    place = places[0 if first else -1]
    head, end = heads[place], heads[place + 1].start() if place + 1 < len(heads) else len(text)
    told = text[head.end() : end]
    threads = list(_threads(told))
    threads.sort(key=lambda thread: thread[0] != int(head[2], 16))
    for _, frames in threads:
        inside = list(takewhile(lambda frame: not is_of_program(frame.file), frames))
        if line := [frame for frame in frames if is_of_program(frame.file)][:2]:
            is_loader = any(_LOADER.search(frame.file) and frame.function in _WAITS for frame in inside)
            caller = _in_words(line[1]) if len(line) > 1 and line[1].function != "<module>" else ""
            group_call = frames[0].function if frames[0].file.endswith(_OF_GROUPS) else ""
            return ProgramLine(*line[0], _loader(told) if is_loader else None, caller, group_call)
    return None


def _loader(text: str) -> str:
    """Say which workers of a data loader do not run, or which run."""
    workers: dict[str, list[str]] = defaultdict(list)
    for child in _CHILD.finditer(text):
        if child[3] == _WORKER:
            workers[_STATES.get(child[2], "")].append(child[1])
    running = workers.pop("", [])
    told = [
        f"{plural(len(pids), 'worker')} pid {', '.join(pids)} {'is' if len(pids) == 1 else 'are'} {does}"
        for does, pids in sorted(workers.items())
    ]
    if running and not told:
        told = [f"{plural(len(running), 'worker')} pid {', '.join(running)} {'runs' if len(running) == 1 else 'run'}"]
    return "its data loader" + (f" ({'; '.join(told)})" if told else "")


def _threads(text: str) -> Iterator[tuple[int, list[Frame]]]:
    """Yield each thread, by its number, with its frames, the innermost first."""
    heads = list(_THREAD.finditer(text))
    for head, after in zip_longest(heads, heads[1:]):
        found = _FRAME.finditer(text, head.end(), after.start() if after is not None else len(text))
        yield int(head[1], 16), [Frame(frame[3], frame[1], int(frame[2])) for frame in found]


def quote(store: Store, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those of ranks that wait, differ or raised also say where in their programs."""
    if not any(finding.rule in (*_RULES, *_RAISED) for finding in findings):
        return list(findings)
    rows = store.rows("SELECT process, rank, shift_ns FROM process WHERE rank IS NOT NULL AND NOT helper")
    of_rank = {row["rank"]: row["process"] for row in rows}
    logs = {row["process"]: (store.directory.logs[row["process"]].path, row["shift_ns"] or 0) for row in rows}
    raised, interrupted = _raised(store), _raised(store, "AND exception = 'KeyboardInterrupt'")

    def quoted(finding: Finding) -> Finding:
        if finding.rule in _RULES:
            return _with_stacks(finding, of_rank, logs, interrupted)
        return _with_exception(finding, raised) if finding.rule in _RAISED else finding

    return [quoted(finding) for finding in findings]


def _raised(store: Store, which: str = "") -> dict[int, list[tuple[int, ProgramLine]]]:
    """Return by process when exceptions ended it, or threads of it, and from which lines of the program they came."""
    out: dict[int, list[tuple[int, ProgramLine]]] = {}
    sql = f"SELECT process, ns, raised_at FROM event WHERE raised_at IS NOT NULL {which} ORDER BY ns, seq"
    for row in store.rows(sql):
        if found := _PLACE.match(row["raised_at"]):
            out.setdefault(row["process"], []).append((row["ns"], ProgramLine(found[3], found[1], int(found[2]))))
    return out


def _with_exception(finding: Finding, raised: dict[int, list[tuple[int, ProgramLine]]]) -> Finding:
    its = raised.get(finding.process, []) if finding.process is not None else []
    line = next((line for ns, line in its if ns >= (finding.ns or 0)), None)
    if line is None or not finding.ranks:
        return finding
    place = place_of(finding.ranks[0], line)
    return replace(finding, message=f"{finding.message}; the exception came from {_told_line(place)}", places=(place,))


def _with_stacks(
    finding: Finding,
    of_rank: dict[int, int],
    logs: dict[int, tuple[Path, int]],
    interrupted: dict[int, list[tuple[int, ProgramLine]]],
) -> Finding:
    places, outside = [], ""
    in_functions: dict[str, list[int]] = defaultdict(list)  # of torch.distributed
    since_ns = (finding.ns or 0) - (_JUST_BEFORE_NS if finding.rule in _ENDED else 0)
    for rank in finding.ranks:
        if rank in of_rank:
            log, shift_ns = logs[of_rank[rank]]
            at = program_line(stacks_of(log), since_ns - shift_ns, first=finding.rule in DIFFER)
            if at is None and finding.rule in WAITS and of_rank[rank] in interrupted:
                at = interrupted[of_rank[rank]][0][1]  # it was there when somebody pressed Control-C
            if at is not None:
                places.append(place_of(rank, at))
                if at.group_call and finding.rule == _ENDED[0]:
                    in_functions[at.group_call].append(rank)
                if rank == finding.ranks[0] and OUTSIDE in finding.message and at.group_call:
                    outside = f"; rank {rank} is in {at.group_call} of torch.distributed there: if it waits for other "
                    outside += "ranks, one of them may be wrong"
    for function, ranks in in_functions.items():
        were = "was" if len(ranks) == 1 else "were"
        outside += f"; {ranks_in_words(ranks)} {were} in {function} of torch.distributed"
    elsewhere = {place.rank for place in places}.difference(*in_functions.values())
    if len(in_functions) == 1 and 0 < 2 * len(elsewhere) < len(places):
        was = "which was in no such function" if len(elsewhere) == 1 else "which were in no such function"
        outside += f", and may have waited for {ranks_in_words(elsewhere)}, {was}"
    told = told_places(places, ("was", "were") if finding.rule in (*DIFFER, _ENDED[1]) else ("is", "are"))
    # With the same words fold() makes the findings of all ranks one.
    if finding.rule == "rule-broken" and len(finding.ranks) == 1:
        told = [f"the program was at {_told_line(place)}" for place in places]
    if finding.rule in DIFFER and told:  # since the call, the host may have gone on
        told[0] = f"when that came out, {told[0]}"
    return replace(finding, message="; ".join([finding.message, *told]) + outside, places=tuple(places))


def place_of(rank: int, at: ProgramLine) -> ProgramPlace:
    """Return where a rank is."""
    return ProgramPlace(rank, at.file, at.line, at.function, at.waits_for, at.caller)


def told_places(places: Sequence[ProgramPlace], verbs: tuple[str, str] = ("is", "are")) -> list[str]:
    """Say where ranks were, in their order, such as ``rank 3 is at train.py:41 in step``."""
    said = []
    for _, alike in groupby(places, key=lambda place: place[1:]):
        same = list(alike)
        what = same[0].waits_for
        does = verbs if what is None else (f"waits for {what}", f"wait for {what}")
        said.append(f"{ranks_in_words(place.rank for place in same)} {does[len(same) > 1]} at {_told_line(same[0])}")
    return said[:_MOST_TOLD]


def _told_line(place: ProgramPlace) -> str:
    return _in_words(place) + (f" (called at {place.caller})" if place.caller else "")


def _in_words(at: Frame | ProgramPlace) -> str:
    return f"{Path(at.file).name}:{at.line} in {at.function}"

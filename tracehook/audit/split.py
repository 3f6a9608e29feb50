"""An audit that is split: tasks read the logs and apply most rules, and this process joins what they say.

The processes of the job are split into blocks, and its communicators into parts; each communicator is whole in one.

1. A task for each block reads its logs (:func:`~tracehook.audit.tasks.read`).
2. What concerns the whole job is joined here: which communicators nobody can judge any more, which groups stand for
   which, which process a rehearsal blames.
3. A task for each block applies the rules about one process, and gives out rows for the parts. Blocks in which
   processes have one rank are one from here on, because a rank's helpers are judged beside it.
4. A task for each part applies the rules about one communicator.
5. The rules about the job, and the analysis of who waits for whom, ask the summaries, here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import tracehook
from tracehook.audit import rows, tasks
from tracehook.audit.finding import Finding
from tracehook.audit.rows import Rows
from tracehook.audit.rules import UNCHECKED, rules
from tracehook.audit.selection import NEWEST, Selection, integer, shifts
from tracehook.audit.store import Store, quiet
from tracehook.audit.texts import Progress, size_of
from tracehook.audit.workers import Workers, in_turn
from tracehook.log.file import LogFile
from tracehook.log.lines import LogError
from tracehook.log.text import ranges_of, told_ranges

_LARGEST = 256 << 20  # bytes of logs that one task reads, or one log
_SMALLEST = 4 << 20  # below that one more task costs more than it saves


class SplitStore(Store):
    """The summaries of a job that others read, and what they found; for a verdict as of a whole :class:`Store`."""

    scopes = ("job",)

    def __init__(
        self,
        path: Path,
        workers: Workers,
        selection: Selection = NEWEST,
        progress: Progress = quiet,
        pieces: int | None = None,
    ) -> None:
        self._workers = workers
        self._pieces = pieces  # into which the job is split, at the most
        self._events: set[str] = set()
        super().__init__(path, selection, progress)

    def events(self) -> set[str]:
        """Return the names of all events in the logs."""
        return self._events

    def _load(self, progress: Progress) -> None:
        blocks = self._blocks()
        progress("reading", 0.0)
        read, events = self._read_logs(blocks)
        progress("rules about processes", 0.4)
        joined = self._join(read, parts=len(blocks))
        judged, bundles = self._judge_processes(joined, blocks, events)
        progress("rules about communicators", 0.7)
        self.found = self._judge_communicators(joined, bundles)
        self.found = _once([*(each for one in judged for each in one.found), *self.found])
        self._make_unreadable()
        self.make_operations()
        self._refuse_several_runs()

    # --- the pieces ---

    def _blocks(self) -> list[range]:
        """Return the numbers of the processes of each block: neighbours, with about as many bytes of logs as others."""
        sizes = [max(1, sum(size_of(part.text) for part in log.parts)) for log in self.directory.logs]
        total, most = sum(sizes), self._pieces
        if most is None and self._is_exported:
            most = self._workers.count
        elif most is None:
            most = max(-(-total // _LARGEST), min(self._workers.count, total // _SMALLEST), 1)
        blocks: dict[int, list[int]] = {}
        passed = 0
        for number, size in enumerate(sizes):
            middle = passed + size // 2
            blocks.setdefault(middle * most // total, []).append(number)
            passed += size
        return [range(its[0], its[-1] + 1) for its in blocks.values()]

    def _about(self, blocks: Sequence[range]) -> str:
        logs = [self.directory.logs[number] for block in blocks for number in block]
        ranks = {log.rank for log in logs if log.rank is not None}
        told = f"rank{'s' * (len(ranks) > 1)} {told_ranges(ranges_of(ranks))}" if ranks else logs[0].path.name
        return f"{len(logs):,} log{'s' * (len(logs) > 1)} ({told})"

    def _read_logs(self, blocks: Sequence[range]) -> tuple[list[tasks.Read], list[Any]]:
        logs, clocks = self.directory.logs, shifts(self.directory.logs)
        is_shortened = any(log.parts and integer(log.begin, "part_t_ns") is not None for log in logs)
        started = []
        for block in blocks:
            its = slice(block.start, block.stop)
            wanted = tasks.ToRead(
                self.directory.path.absolute(),
                self._is_exported,
                [_absolute(log) for log in logs[its]],
                clocks[its],
                block.start,
                is_shortened,
            )
            started.append(self._workers.start(self._about([block]), tasks.read, wanted, results=2))
        read = cast(list[tasks.Read], in_turn(self._workers, started))
        for version in {one.version for one in read} - {tracehook.__version__}:
            raise LogError(
                f"a worker has tracehook {version}, and this process {tracehook.__version__}; install one version on "
                "all machines"
            )
        self._events = {event for one in read for event in one.events}
        return read, [events for _, events in started]

    def _judge_processes(
        self, joined: tasks.Joined, blocks: Sequence[range], events: Sequence[Any]
    ) -> tuple[list[tasks.Judged], list[list[Any]]]:
        shared = self._workers.share(joined)
        started = []
        for together in self._together(blocks):
            own = [blocks[number] for number in together]
            its = [events[number] for number in together]
            made = self._workers.start(
                self._about(own), tasks.judge_processes, shared, own, *its, results=1 + joined.parts
            )
            started.append(made)
        judged = cast(list[tasks.Judged], in_turn(self._workers, started))
        self._database.execute("DROP TABLE process")
        for table in dict.fromkeys(table for table, *_ in tasks.FOR_THE_JOB):
            packed = [one.tables[table] for one in judged]
            if table == "event":
                rows.unpack_events(self._database, self._scratch, self._events, packed)
            else:
                self._unpack(table, packed)
        return judged, [bundles for _, *bundles in started]

    def _judge_communicators(self, joined: tasks.Joined, bundles: Sequence[Sequence[Any]]) -> list[Finding]:
        wanted = {event for rule in rules() if rule.scope == "communicator" for event in rule.needs}
        if not wanted & self._events:
            return []
        shared = self._workers.share(replace(joined, tables=joined.tables | {"process": self._pack("FROM process")}))
        started = []
        for part in range(joined.parts):
            about = f"the communicators of part {part + 1} of {joined.parts}"
            its = [of_block[part] for of_block in bundles]
            started.append(self._workers.start(about, tasks.judge_communicators, shared, *its))
        return [found for one in in_turn(self._workers, started) for found in one]

    # --- what concerns the whole job ---

    def _join(self, read: Sequence[tasks.Read], parts: int) -> tasks.Joined:
        for table in ("process", "gone", "violation"):
            self._unpack(table, [one.tables[table] for one in read])
        self._database.execute("CREATE TABLE forgotten (comm VARCHAR)")
        if "condensed" in read[0].tables:
            self._unpack("event", [one.tables["condensed"] for one in read])
            self._database.execute("INSERT INTO forgotten SELECT DISTINCT comm FROM event")
            self.run_sections("forgotten")
            self._database.execute("DELETE FROM forgotten WHERE comm IN (SELECT comm FROM event)")
            self._database.execute("DROP TABLE event")
        self._unpack("event", [one.tables["named"] for one in read])
        self.run_sections("groups")
        self._database.execute("DROP TABLE event")
        self._database.execute("DELETE FROM communicator_group WHERE comm IN (FROM forgotten)")
        names = ("process", "gone", "violation", "forgotten", "communicator_group")
        return tasks.Joined({name: self._pack(f"FROM {name}") for name in names}, frozenset(self._events), parts)

    def _together(self, blocks: Sequence[range]) -> list[list[int]]:
        """Return which blocks are one, because processes of one rank stand in them."""
        block_of = {number: place for place, block in enumerate(blocks) for number in block}
        groups = [[place] for place in range(len(blocks))]
        homes: dict[tuple[str | None, int], int] = {}
        for row in self.rows("SELECT process, job, rank FROM process WHERE rank IS NOT NULL ORDER BY process"):
            one, other = homes.setdefault((row["job"], row["rank"]), block_of[row["process"]]), block_of[row["process"]]
            if groups[one] is not groups[other]:
                groups[one] += groups[other]
                for place in groups[other]:
                    groups[place] = groups[one]
        return [sorted(group) for place, group in enumerate(groups) if min(group) == place]

    def _pack(self, sql: str) -> Rows:
        return rows.pack(self._database, self._scratch, sql)

    def _unpack(self, table: str, packed: Sequence[Rows]) -> None:
        rows.unpack(self._database, self._scratch, table, packed)


def _absolute(log: LogFile) -> LogFile:
    """Return a log whose paths hold in every process."""
    parts = [replace(part, path=part.path.absolute(), text=part.text.absolute()) for part in log.parts]
    return replace(log, path=log.path.absolute(), parts=parts)


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Leave one of the findings that a rule could not be checked: several tasks may say so."""
    unchecked = dict.fromkeys(each for each in found if each.message.startswith(UNCHECKED))
    return [each for each in found if each not in unchecked] + list(unchecked)

"""The logs of a directory as Parquet files: tables ``event`` and ``process``, copied by DuckDB."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tracehook.audit import lines_table
from tracehook.audit.limits import limits, open_database
from tracehook.audit.selection import LATEST, integer
from tracehook.audit.texts import NOWHERE, Place, Texts, fill
from tracehook.log.directory import find_logs
from tracehook.log.file import LogFile
from tracehook.log.file_name import stem_of
from tracehook.log.lines import LogError
from tracehook.log.text import encodable

TABLES: Final = ("event", "process")
SCHEMA: Final = "3.0"
"""Of the files: the second number grows with columns that are added, the first one if one changes its meaning."""

_PROCESS: Final = """
CREATE TABLE process (number INTEGER, process VARCHAR, file VARCHAR, job VARCHAR, attempt INTEGER, rank INTEGER,
    world_size INTEGER, host VARCHAR, pid BIGINT, began TIMESTAMP, began_ns BIGINT, "begin" VARCHAR, ended BOOLEAN,
    torn BOOLEAN, complaint VARCHAR, ring BOOLEAN, dropped UBIGINT, looked_ns BIGINT, signal INTEGER, sender BIGINT,
    signal_ns BIGINT)"""
_SELECT: Final = {
    # One process after another, so a reader of some processes passes most of the file by.
    "event": """
SELECT process.process, job, host, process.pid, process.rank,
       began + to_microseconds((t_ns - began_ns) // 1000) AS time, recovered, said_rank,
       event.* EXCLUDE (process, rank, recovered, ns, is_no_event, said_rank)
FROM event JOIN process ON number = event.process WHERE NOT is_no_event ORDER BY number, t_ns, seq""",
    "process": "SELECT * EXCLUDE (number) FROM process ORDER BY number",
}


class Exported(NamedTuple):
    """What the files have, and what they lack."""

    events: int
    logs: int
    foreign: int  # lines that are no events
    unreadable: list[str]


def export(directory: Path, out: Path) -> Exported:
    """Write what the logs of `directory` have to `out`, in place of what stands there. Raises LogError and OSError."""
    with tempfile.TemporaryDirectory(prefix="tracehook-export-") as scratch:
        found = find_logs(directory, Path(scratch))
        if found.newer:
            raise LogError(found.newer)
        logs = sorted(found.logs, key=lambda log: log.job or "")
        out.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".export-", dir=out) as aside,
            limits(),
            open_database(Path(scratch, "export.duckdb")) as database,
        ):
            _, _, places = fill(database, Texts(logs, Path(scratch)), logs, [0] * len(logs))
            database.execute(_PROCESS)
            rows = [_row(number, log, places.get(number, NOWHERE), directory) for number, log in enumerate(logs)]
            lines_table.add_rows(database, "process", rows)
            ((foreign,),) = database.execute("SELECT count(*) FROM event WHERE is_no_event").fetchall()
            counts = {}
            for table in TABLES:
                file = lines_table.quoted(Path(aside, f"{table}.parquet"))
                how = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{tracehook: '{SCHEMA}'}}"
                ((counts[table],),) = database.execute(f"COPY ({_SELECT[table]}) TO '{file}' ({how})").fetchall()
            for table in TABLES:
                Path(aside, f"{table}.parquet").replace(out / f"{table}.parquet")
    return Exported(counts["event"], len(logs), foreign, found.unreadable)


def _row(number: int, log: LogFile, place: Place, directory: Path) -> tuple[object, ...]:
    """Return what is known of a process."""
    begin, path = log.begin, log.path.relative_to(directory)
    host = begin.get("host")
    of_ring: tuple[int | None, ...] = (None,) * 5
    if log.left is not None:
        ring = log.left.header
        looked_ns, signal_ns = (time if 0 < time < LATEST else None for time in (ring.looked_ns, ring.signal_ns))
        of_ring = min(ring.dropped, LATEST), looked_ns, ring.signal or None, ring.sender or None, signal_ns
    return (
        *(number, encodable(str(path.with_name(stem_of(path.name)))), encodable(str(path)), log.job),
        *(integer(begin, "attempt"), place[0] if log.rank is None else log.rank),
        *(integer(begin, "world_size") or place[1], None if host is None else encodable(str(host))),
        *(integer(begin, "pid"), log.began, integer(begin, "t_ns"), encodable(json.dumps(begin)), log.ended),
        *(log.torn, encodable(log.complaint) or None, log.left is not None, *of_ring),
    )

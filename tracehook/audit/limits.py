"""How much memory and disk the database of an audit may take, and what is said when it is too little."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from tracehook.audit.lines_table import quoted
from tracehook.log.lines import LogError

MEMORY: Final = "1200MB"
DISK: Final = "8GB"  # beyond that memory, for one question


class TooMuch(LogError):
    """What was asked takes more memory or disk than it may."""


def open_database(file: Path) -> duckdb.DuckDBPyConnection:
    """Make a database that keeps to these limits. What does not fit into memory goes beside its file."""
    database = duckdb.connect(str(file))
    database.execute(f"SET memory_limit = '{MEMORY}'; SET max_temp_directory_size = '{DISK}'")
    database.execute(f"SET temp_directory = '{quoted(file.parent)}'")
    database.execute("SET enable_progress_bar = false")  # DuckDB would draw it on stdout
    database.execute("PRAGMA disable_checkpoint_on_shutdown")  # the file goes with its folder
    return database


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Turn what DuckDB raises into one line."""
    try:
        yield
    except duckdb.OutOfMemoryException as problem:
        raise TooMuch(f"it needs more than {MEMORY} of memory and {DISK} of disk, or the disk is full") from problem
    except duckdb.IOException as problem:
        raise LogError(f"{tempfile.gettempdir()}: {first_line(problem)}") from problem
    except duckdb.Error as problem:
        raise LogError(f"please report this, with the logs: {first_line(problem)}") from problem
    except RuntimeError as problem:
        if str(problem) == "Query interrupted":  # DuckDB's answer to a signal handler that raised
            raise KeyboardInterrupt from problem
        raise


def first_line(problem: Exception) -> str:
    """Return what an exception says, without the rest of its lines."""
    return str(problem).partition("\n")[0]

"""How much memory and disk the database of an audit may take, and what is said when it is too little."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Final

import duckdb

from tracehook.log.lines import LogError

MEMORY: Final = "1200MB"
DISK: Final = "8GB"  # beyond that memory, for one question


class TooMuch(LogError):
    """What was asked takes more memory or disk than it may."""


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

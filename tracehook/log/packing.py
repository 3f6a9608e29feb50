"""Logs that are packed, by gzip or by zstd: read as much as is there."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tracehook.log.lines import LogError

_CHUNK: Final = 1 << 22
# What a log has at most, unpacked. The lines of one differ in their times, so it takes a tenth when it is packed.
_ROOM: Final = 1 << 26  # bytes, of any
_TIMES: Final = 50  # of the packed size


def unpack(packed: Path, target: Path) -> str:
    """Unpack as much as is there; return what was wrong, or nothing. Raises :class:`LogError` without zstandard."""
    room = max(_ROOM, _TIMES * packed.stat().st_size)
    with target.open("wb") as out:
        try:
            with opened(packed) as source:
                while chunk := source.read1(_CHUNK):  # read() would lose what lies before the damage
                    if out.tell() + len(chunk) > room:
                        raise _Damaged(f"it has more than {room} bytes, which no log packs into so few")
                    out.write(chunk)
        except (EOFError, zlib.error, gzip.BadGzipFile, _Damaged) as problem:
            kind = "gzip" if packed.suffix == ".gz" else "zstd"
            return f"{packed.name}: damaged {kind} ({problem}); read up to there"
    return ""


def first_line(path: Path, limit: int) -> bytes:
    """Return up to `limit` bytes of the first line; nothing if it cannot be read."""
    try:
        with opened(path) as file:
            return bytes(file.readline(limit))
    except (OSError, EOFError, zlib.error, LogError, _Damaged):
        return b""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a log to read its text."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield file
    elif path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise LogError("zstd needs a package: pip install zstandard") from None
        try:
            with zstandard.open(path, "rb") as file:
                yield file
        except zstandard.ZstdError as problem:
            raise _Damaged(str(problem)) from None
    else:
        with path.open("rb") as file:
            yield file


class _Damaged(Exception):
    """What zstandard says of a file."""

"""A file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that becomes `path` when the block ends, and goes if the block raises.

    Raises :class:`OSError` at the beginning if nothing can be written there.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "is there, and is no regular file", str(path))
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        file = part.open("xb")
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    with file:
        try:
            yield file
            file.flush()
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

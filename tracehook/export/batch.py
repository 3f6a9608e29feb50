"""Files that come into a directory together: all of them or, if the process is killed, none until the next start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_STATE: Final = "state.json"


class Batch:
    """Files that are made aside and then moved to their places. A state goes with them. For one process at a time.

    `out` is where they go, `name` tells the batches of several writers apart. A batch that was whole when its writer
    was killed is moved now; half a batch is thrown away. Raises OSError.
    """

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._whole = out / f".batch-{name}"
        self._state = out / f".state-{name}.json"
        self.folder = out / f".batch-{name}.new"  # make the files here
        if self._whole.is_dir():
            self._move()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def state(self) -> bytes | None:
        """Return the state of the last batch, if there was one."""
        try:
            return self._state.read_bytes()
        except FileNotFoundError:
            return None

    def commit(self, state: bytes) -> None:
        """Move the files to their places: from here on they will be there, whatever happens."""
        (self.folder / _STATE).write_bytes(state)
        for file in self.folder.rglob("*"):
            _to_disk(file)
        _to_disk(self.folder)
        self.folder.rename(self._whole)
        _to_disk(self._out)
        self._move()

    def drop(self) -> None:
        """Leave no file."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _move(self) -> None:
        for file in sorted(self._whole.rglob("*")):
            if file.is_dir() or file.name == _STATE:
                continue
            place = self._out / file.relative_to(self._whole)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
        state = self._whole / _STATE
        if state.exists():
            state.replace(self._state)
        shutil.rmtree(self._whole)


def _to_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

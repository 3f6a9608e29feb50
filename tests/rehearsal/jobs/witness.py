"""What processes note that are killed: in memory that they share with a parent, which tells what stood there last."""

import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_COUNT = struct.Struct("<Q")
_SLOTS = 4  # the note of step n is not touched while that of step n + 1 is written


class Notes:
    """The last steps of one process: a note of so many numbers for each."""

    def __init__(self, numbers: int) -> None:
        self._note = struct.Struct(f"<{numbers}Q")
        self._memory = mmap.mmap(-1, 4096)

    def write(self, step: int, note: Sequence[int]) -> None:
        """Note numbers; how many steps there were comes last."""
        self._note.pack_into(self._memory, self._place(step), *note)
        _COUNT.pack_into(self._memory, 0, step + 1)

    def steps(self) -> int:
        """Return how many steps were noted."""
        return int(_COUNT.unpack_from(self._memory)[0])

    def last(self) -> list[int] | None:
        """Return the last note, if there is one."""
        steps = self.steps()
        return list(self._note.unpack_from(self._memory, self._place(steps - 1))) if steps else None

    def _place(self, step: int) -> int:
        return 64 + step % _SLOTS * self._note.size


def play(one_round: Callable[[int, int, Path], dict[str, object]]) -> None:
    """Play rounds, and tell of each. Arguments: the first one, how many, a seed, the folder of their logs."""
    first, count, seed = map(int, sys.argv[1:4])
    for number in range(first, first + count):
        told = one_round(number, seed, Path(sys.argv[4], f"{number:03}"))
        os.write(1, f"fact 0 {json.dumps({str(number): told})}\n".encode())

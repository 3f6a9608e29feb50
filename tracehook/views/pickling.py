"""A pickle written piece by piece, so that what is in it need not be in memory at once.

In protocol 3 and of plain values: what the reader of pytorch.org/memory_viz knows.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

_BEGIN = b"\x80\x03"
_AT_ONCE = 1000  # items appended by one instruction; the viewer takes them as the arguments of one call


class Pieces:
    """Writes plain values, one after the other. What it wrote can be put into a pickle: by itself it is none."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def value(self, value: object) -> None:
        """Write a value of dicts, lists, tuples, strings and numbers."""
        # Between the marks of beginning and end. It numbers what it refers to again from 0, over what came before.
        self.file.write(pickle.dumps(value, 3)[len(_BEGIN) : -1])

    def extend(self, values: Iterable[object]) -> None:
        """Append to the list that was written last."""
        left = iter(values)
        while some := list(islice(left, _AT_ONCE)):
            self.file.write(b"(")
            for value in some:
                self.value(value)
            self.file.write(b"e")


class PickleStream(Pieces):
    """Writes a dict to `file`, from its creation to :meth:`end`."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        file.write(_BEGIN + b"}")

    @contextlib.contextmanager
    def item(self, key: str) -> Iterator[None]:
        """Write the key; the block writes its value."""
        self.value(key)
        yield
        self.file.write(b"s")

    @contextlib.contextmanager
    def list(self) -> Iterator[None]:
        """Write a list that the block extends."""
        self.file.write(b"]")
        yield

    @contextlib.contextmanager
    def appended(self) -> Iterator[None]:
        """Append to the list that was written last what the block writes."""
        yield
        self.file.write(b"a")

    def copy(self, pieces: BinaryIO) -> None:
        """Take over what was written by :class:`Pieces`."""
        pieces.seek(0)
        shutil.copyfileobj(pieces, self.file)

    def end(self) -> None:
        """Write the end. The file is not closed."""
        self.file.write(b".")

"""What this process says on stderr, from the import of this module on, for a job to wait for it."""

import sys
from typing import Any, TextIO

from common import until


class _Kept:
    """A stream that keeps what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self.text += text
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hear(text: str) -> None:
    """Wait until this process has said `text`; not for ever: the test then misses the line."""
    until(lambda: text in _kept.text)


sys.stderr = _kept = _Kept(sys.stderr)

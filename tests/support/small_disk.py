"""A file system with little room."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(directory: Path, size: bytes) -> Iterator[None]:
    """Mount a file system of that size there, or skip the test with the system's reason."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, b"size=" + size) != 0:
        pytest.skip(f"this process may not mount a small file system: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(os.fsencode(directory), 2)

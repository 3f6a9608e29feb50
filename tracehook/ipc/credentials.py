"""Whose process is at the other end of a socket, as the kernel knows it: no process can claim to be another."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import NamedTuple

_UCRED = struct.Struct("3i")


class Credentials(NamedTuple):
    """Who connected, or who listens. A process that this one cannot see has the number 0."""

    pid: int
    user: int
    group: int


def credentials_of(sock: socket.socket) -> Credentials:
    """Return the credentials of the process at the other end of a connected socket."""
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def namespace(kind: str) -> int:
    """Return the number of this process's namespace ("net", "pid"); 0 if the system does not say."""
    try:
        return Path(f"/proc/self/ns/{kind}").stat().st_ino
    except OSError:
        return 0

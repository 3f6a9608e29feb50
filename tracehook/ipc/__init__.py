"""Ranks of one host map each other's memory and copy directly; see docs/ipc.md.

Loaded at its first use: ``import tracehook`` does not load it.
"""

from tracehook.errors import PeerError, PeerLost, PeerTensorGone, PeerTimeout
from tracehook.ipc.group import PeerGroup
from tracehook.ipc.tensor import PeerTensor

__all__ = ["PeerError", "PeerGroup", "PeerLost", "PeerTensor", "PeerTensorGone", "PeerTimeout"]

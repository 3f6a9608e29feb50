"""What goes wrong when ranks register or share memory together, as exceptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class RegistrationError(RuntimeError):
    """Windows could not be registered, or must not be used. The text names ranks, communicator and what to do."""


class RegistrationMismatch(RegistrationError):
    """The ranks do not want the same: nothing was registered, or the call was not made, on any rank that came.

    `topic`: what all of them were about to do, with different things; None if they were about to do something else.
    """

    def __init__(self, text: str, topic: str | None = None) -> None:
        super().__init__(text)
        self.topic = topic


class RegistrationTimeout(RegistrationError):
    """Some ranks did not come within ``SYMM_REGISTER_TIMEOUT`` seconds. `missing` has their ranks in the group."""

    def __init__(self, text: str, missing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


class RegistrationFailed(RegistrationError):
    """NCCL refused a window on at least one rank, so no rank uses it. `failures` has the reason of each such rank."""

    def __init__(self, text: str, failures: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.failures = dict(failures or {})


class PeerError(RuntimeError):
    """Memory could not be shared with a peer. The text names the group, the ranks and what to do."""


class PeerTimeout(PeerError):
    """Some peers did not come in time. `missing` has their ranks in the group."""

    def __init__(self, text: str, missing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


class PeerLost(PeerError):
    """A peer's process has ended, or it closed its end of the group. `peer` is its rank in the group."""

    def __init__(self, text: str, peer: int = -1) -> None:
        super().__init__(text)
        self.peer = peer


class PeerTensorGone(PeerError):
    """The owner of this memory asked for it back, or the group was closed: exchange the tensor again."""

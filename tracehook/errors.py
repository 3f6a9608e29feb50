"""What goes wrong when ranks register or share memory together, as exceptions. Each ends with what to do now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class _Advised(RuntimeError):
    """An error whose text ends with one sentence of advice.

    `text`: what went wrong, without it. `advice`: that of this error, or else of its class; empty if `text` has it.
    """

    ADVICE: ClassVar[str] = ""

    def __init__(self, text: str, *, advice: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.advice = self.ADVICE if advice is None else advice

    def __str__(self) -> str:
        return f"{self.text}. {self.advice}" if self.advice else self.text


class RegistrationError(_Advised):
    """Ranks could not register windows, or must not use them. The text names ranks, communicator and a remedy."""

    ADVICE = (
        "tracehook.explain(tensor, group) says what holds for a tensor, and docs/failure-modes.md explains failures"
    )


class RegistrationMismatch(RegistrationError):
    """The ranks do not want the same. No rank that came registered anything, or made the call.

    `topic`: the act that all of them were about to do with different things; None if their acts differ.
    """

    ADVICE = "Let all ranks make the same calls, and end the same scopes, in one order"

    def __init__(self, text: str, topic: str | None = None, *, advice: str | None = None) -> None:
        super().__init__(text, advice=advice)
        self.topic = topic


class RegistrationTimeout(RegistrationError):
    """Some ranks did not come within the time-out of their group.

    `missing` is a tuple of their ranks in the group, as ``torch.distributed.get_global_rank`` takes them. The text has
    their ranks in the job.
    """

    ADVICE = "Find out what the missing rank was doing; if it was only slow, give the group a longer time-out"

    def __init__(self, text: str, missing: Sequence[int] = (), *, advice: str | None = None) -> None:
        super().__init__(text, advice=advice)
        self.missing = tuple(missing)


class RegistrationFailed(RegistrationError):
    """NCCL refused a window on at least one rank, so no rank uses it.

    `failures` is a dict with the reason of each such rank, by its rank in the group. The text has the ranks in the job.
    """

    ADVICE = "Fix the cause on that rank; if NCCL refused, NCCL_DEBUG=INFO shows why"

    def __init__(self, text: str, failures: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.failures = dict(failures or {})


class PeerError(_Advised):
    """A rank could not share memory with a peer. The text names the group, the ranks and a remedy."""

    ADVICE = "docs/ipc.md lists the memory that ranks can share, and explains each failure"

    told = ""  # what a peer said that gave up

    def within(self, about: str) -> PeerError:
        """Return this error as one of something larger."""
        larger = PeerError(f"{about}: {self.text}", advice=self.advice)
        larger.told = self.told
        return larger


class PeerTimeout(PeerError):
    """Some peers did not come in time. `missing` is a tuple of their ranks in the group."""

    ADVICE = "Find out what they were doing; if they were only slow, give PeerGroup a longer timeout"

    def __init__(self, text: str, missing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


class PeerLost(PeerError):
    """A peer's process has ended, or it closed its end of the group. `peer` is its rank in the group."""

    ADVICE = "Find out why it ended; then close this group, and make another one with the ranks that live"

    def __init__(self, text: str, peer: int = -1) -> None:
        super().__init__(text)
        self.peer = peer


class PeerTensorGone(PeerError):
    """The owner of this memory asked for it back, or somebody closed the group. Exchange the tensor again."""

    ADVICE = "Exchange the tensor again, in a group that is open"

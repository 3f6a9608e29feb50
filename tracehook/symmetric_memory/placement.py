"""Compares between ranks, at its first use, where a collective's buffers lie and how the call is configured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracehook.errors import RegistrationError, RegistrationMismatch, RegistrationTimeout
from tracehook.log.stderr import say_once
from tracehook.symmetric_memory import divergence
from tracehook.symmetric_memory.divergence import Place
from tracehook.symmetric_memory.ranks_follower import UNSURE
from tracehook.symmetric_memory.windows import GroupWindows

_ADVICE = (
    "On all ranks make the same call with the same number of elements, and allocate and free the tensors of scopes in "
    "one order, between the same scopes: then the same buffer lies in the same window on each"
)


class PlacementCheck:
    """Called by the native side, on the thread that issues a collective whose placement is new.

    Returns an empty text if all ranks use the same place; otherwise why the call must not be made. It is then not made
    on any rank that came, and torch raises its error with that text.
    """

    def __init__(self, group_of: Callable[[int], GroupWindows | None]) -> None:
        self._group_of = group_of

    def __call__(
        self,
        communicator_id: int,
        call: int,
        how: tuple[int, int, int, int],
        operation: str,
        send: Place,
        receive: Place,
        settings: Sequence[str],
    ) -> str:
        """Compare call number `call`.

        `communicator_id` is the native one. `how`: bytes of one rank's part, and the call's type, reduction and root as
        NCCL has them, -1 if it has none. `settings` are those of the call alone.
        """
        found = self._group_of(communicator_id)
        if found is None or found.guard == "off":
            return ""  # its ranks compare nothing
        topic = f"placement of {operation}"
        entries = [*divergence.wishes(send, receive), *settings, divergence.in_words(*how)]
        why = self._compare(found, call, topic, entries, is_configured=bool(settings))
        side = divergence.overrun(send, receive)
        if not why and side is not None:
            where = f"begins in a window of {found.about} and ends outside it: pass one that lies in it whole"
            why = self._refused(found, f"the {side} buffer of {operation} {where}")
        if why:
            say_once(why.removeprefix("tracehook: "))
        return why

    def _compare(self, found: GroupWindows, call: int, topic: str, entries: list[str], *, is_configured: bool) -> str:
        communicator = found.communicator()
        if communicator is not None:
            uses, digest = communicator.digest()
            entries.append(f"{uses} collectives before, placements {digest:016x}")
        try:
            found.compare_use(topic, entries, call)
        except RegistrationMismatch as problem:
            text = f"{problem.text}. {_ADVICE}" if problem.topic == topic and not is_configured else str(problem)
            if communicator is not None:
                communicator.log("placement.mismatch")
            return self._refused(found, text)
        except RegistrationTimeout as problem:
            text = f"{problem.text}. {UNSURE}"
            if found.guard == "on":
                found.end(text)
            return self._refused(found, text)
        except RegistrationError as problem:
            return self._refused(found, str(problem))
        return ""

    @staticmethod
    def _refused(found: GroupWindows, text: str) -> str:
        """Return why the call is refused; say it only, where the guard is to watch."""
        if found.guard == "on":
            return f"tracehook: {text}"
        told = text.replace("; nothing was registered or called", "")
        say_once(f"{told}; the call is made all the same (SYMM_REGISTER_GUARD={found.guard})")
        return ""

"""From which pool a scope's memory comes: asks the policies, and sees that those of all ranks depend on the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from tracehook.log.stderr import say_once
from tracehook.nccl.effect import PAYING, Threshold
from tracehook.policies.base import Answer, Request
from tracehook.policies.chooser import Chooser
from tracehook.symmetric_memory.windows import GroupWindows

SHARED_POOL, GROUP_POOL = "shared", "group"  # the first words of names


class PoolChoice:
    """The policies of this process. Any thread."""

    def __init__(self, names: Sequence[str], push: Callable[..., None]) -> None:
        self._push = push
        self._chooser = Chooser(names, self._report)

    def pool(
        self,
        windows: Sequence[GroupWindows],
        device: int,
        graph: bool,
        hints: tuple[str | None, int | None, str | None],
    ) -> str | None:
        """Return the pool's name, None for ordinary memory. Collective the first time, if a policy has a fingerprint.

        `hints`: operation, bytes and type, if the program said them.
        """
        operation, nbytes, dtype = hints
        facts = [found.facts for found in windows]
        names, descriptions = tuple(one.name for one in facts), tuple(one.desc for one in facts)
        ranks, members = tuple(one.ranks for one in facts), tuple(one.members for one in facts)
        request = Request(names, ranks, device, operation, nbytes, graph, descriptions, members, dtype)
        choice = self._chooser.choose(request, self._unequal(windows))
        self._push("policy.chosen", choice=choice.index, answer=list(Answer).index(choice.answer))
        for found in windows:
            found.choices.add((choice.policy, choice.answer))
        match choice.answer:
            case Answer.SHARED:
                return _of_ranks(SHARED_POOL, windows)
            case Answer.ISOLATED:  # a pool for each set of groups would stay when one of them is gone
                return f"{GROUP_POOL} {names[0]}" if len(names) == 1 else _of_ranks("sets", windows)
            case Answer.NONE:
                return None

    def _unequal(self, windows: Sequence[GroupWindows]) -> Set[str]:
        """Return the policies that must not be asked: what they depend on is not alike on all ranks of the group."""
        fingerprints = self._chooser.fingerprints()
        if fingerprints and len(windows) > 1:
            return fingerprints.keys()  # a rank that has groups alike cannot know of others in them that have not
        problem = windows[0].compare_policies(fingerprints) if fingerprints else ""
        if not problem:
            return frozenset()
        if say_once(f"{problem}; the next policy answers for this group"):
            self._push("policy.failed")
        return fingerprints.keys()

    def _report(self, text: str) -> None:
        self._push("policy.failed")
        say_once(text)


def _of_ranks(kind: str, windows: Sequence[GroupWindows]) -> str:
    """Return the pool of that kind for groups of these ranks: a rank outside of them would not move it alike."""
    return " ".join([kind, *sorted({found.partition for found in windows} - {""})])


def paying_calls(names: Sequence[str]) -> dict[str, Threshold]:
    """Return from which sizes on calls are faster on registered memory, as the policies of these names know it."""
    chooser = Chooser(names, say_once)
    found = {operation: chooser.pays(operation) for operation in PAYING}
    return {operation: limit for operation, limit in found.items() if limit is not None}

"""Plays a program of ``faulty.py`` as hosts and streams do, until nothing moves: what is logged of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.faulty import Act, Program
from tracehook.audit.called import Caller, Callers
from tracehook.log.calls import Call, Calls, Making, Partner

SECOND = 10**9
_KEPT_MARKS = 64  # kKept in nccl/marks.cpp
_LAST = ("spin", "stop", "exit")
_WHAT = {"all_reduce": 7 << 8, "send": 131 | 7 << 8, "recv": 132 | 7 << 8}


@dataclass(eq=False)
class _Work:
    """What a stream has to do: a call, a batch of transfers, or to wait for another piece of work."""

    rank: int
    kind: str
    key: object = None
    parts: list[tuple[str, int, str, int]] = field(default_factory=list)  # kind, peer, group, number for the pair
    done: bool = False
    waits_for: Sequence[_Work] = ()


class Played:
    """A program that was played to its end, or until nothing moves."""

    def __init__(self, program: Program) -> None:
        """Play it."""
        self.program = program
        ranks = range(program.ranks)
        self._left = [deque(acts) for acts in program.acts]
        self._streams: list[dict[str, deque[_Work]]] = [defaultdict(deque) for _ in ranks]
        self.posted: list[list[tuple[str, Act, int, _Work]]] = [[] for _ in ranks]  # group, act, batch
        self._made = [0] * program.ranks
        self.making: list[bool] = [False] * program.ranks
        self._counts: list[dict[object, int]] = [defaultdict(int) for _ in ranks]
        moves = True
        while moves:
            moves = sum(self._host(rank) + self._device(rank) for rank in ranks) > 0
        self._kept = 128
        left = [acts and acts[0].kind != "exit" for acts in self._left]
        self.stands = any(left[rank] or any(self._streams[rank].values()) for rank in ranks)

    def _host(self, rank: int) -> bool:
        moved = False
        while self._left[rank]:
            act = self._left[rank][0]
            if act.kind in _LAST:
                return moved
            if act.kind == "sync":
                if any(self._streams[rank].values()):
                    return moved
            elif act.kind == "make":
                if not self.making[rank]:
                    self.making[rank] = True
                    self._made[rank] += 1
                    moved = True
                if any(made < self._made[rank] for made in self._made):
                    return moved
                self.making[rank] = False
            elif act.kind == "after":
                waited = list(self._streams[rank][act.group])
                self._streams[rank][act.stream].append(_Work(rank, "after", waits_for=waited))
            elif act.kind == "kernel":
                self._streams[rank][act.stream].append(_Work(rank, "kernel"))
            else:
                self._post(rank, act)
            self._left[rank].popleft()
            moved = True
        return moved

    def _numbered(self, rank: int, *key: object) -> int:
        self._counts[rank][key] += 1
        return self._counts[rank][key]

    def _post(self, rank: int, act: Act) -> None:
        inner = act.inner or (act,)
        batch = self._numbered(rank, "batch") if act.kind == "batch" else 0
        if act.kind == "all_reduce":
            key = (self._comm(rank, act.group), self._numbered(rank, act.group))
            work = _Work(rank, "all_reduce", key)
        else:
            parts = [(e.kind, e.peer, e.group, self._numbered(rank, e.kind, e.peer, e.group)) for e in inner]
            work = _Work(rank, "batch", parts=parts)
        self.posted[rank] += [(each.group, each, batch, work) for each in inner]
        self._streams[rank][act.stream].append(work)

    def _comm(self, rank: int, group: str) -> str:
        if group == "made":
            return "made"
        return f"{group}{self.program.members(group, rank)[0]}"

    def _heads(self, rank: int) -> list[_Work]:
        return [queue[0] for queue in self._streams[rank].values() if queue]

    def _device(self, rank: int) -> bool:
        moved = False
        for queue in self._streams[rank].values():
            while queue and self._goes(queue[0]):
                queue.popleft().done = True
                moved = True
        return moved

    def _goes(self, work: _Work) -> bool:
        if work.done:
            return True
        if work.kind == "after":
            return all(each.done for each in work.waits_for)
        if work.kind == "all_reduce":
            assert isinstance(work.key, tuple)
            group, _ = work.key
            members = range(self.program.ranks) if group in ("made", "world0") else self._members(group)
            heads = [head for rank in members for head in self._heads(rank) if head.key == work.key]
            if len(heads) < len(members):
                return False
            for head in heads:
                head.done = True
            return True
        if work.kind == "kernel":
            return False
        # All transfers of a batch make progress together; each part is done when both halves are at a head.
        for part in list(work.parts):
            kind, peer, group, number = part
            wanted = ("recv" if kind == "send" else "send", work.rank, group, number)
            for head in self._heads(peer):
                if head.kind == "batch" and wanted in head.parts:
                    head.parts.remove(wanted)
                    work.parts.remove(part)
        return not work.parts

    def _members(self, comm: str) -> list[int]:
        name = comm.rstrip("0123456789")
        return self.program.members(name, int(comm[len(name) :]))

    def job(self, transfers: int = 128) -> Callers:
        """Return what the audit would read of it, if the log has so many sends and receives of a communicator."""
        self._kept = transfers
        return Callers([self._caller(rank) for rank in range(self.program.ranks)], {})

    def _caller(self, rank: int) -> Caller:
        parts: dict[str, Calls] = {}
        names = [*self.program.groups]
        if self._made[rank] and not self.making[rank]:
            names.append("made")
        for role, name in enumerate(names, start=1):
            members = list(range(self.program.ranks)) if name == "made" else self.program.members(name, rank)
            parts[self._comm(rank, name)] = self._calls(rank, name, role, members)
        ended = bool(self._left[rank]) and self._left[rank][0].kind == "exit"
        return Caller(
            number=rank, rank=rank, pid=1000 + rank, ended=ended, how="exit" if ended else None, exception=None,
            signal=None if ended else 15, sender=None if ended else 1,
            making=self._making(rank), ended_ns=10 * SECOND, last_event="register.local", shift_ns=0, parts=parts,
        )  # fmt: skip

    def _making(self, rank: int) -> list[Calls]:
        if not self.making[rank]:
            return []
        world = list(range(self.program.ranks))
        made = self._calls(rank, "made", 0, world)
        return [made._replace(making=Making(len(self.posted[rank]), self._made[rank] - 1, "world0"), last=())]

    def _calls(self, rank: int, name: str, role: int, members: list[int]) -> Calls:
        comm = self._comm(rank, name)
        made: list[Call] = []
        passed: list[Call] = []
        peers: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        digest = 0
        ahead = self._ahead(rank)
        for order, (group, act, batch, _) in enumerate(self.posted[rank], start=1):
            if self._comm(rank, group) != comm:
                continue
            what = _WHAT[act.kind]
            if act.kind == "all_reduce":
                digest = hash((digest, act.size))
                made.append(Call(len(made), what, act.size, -1, order, digest, batch << 8 | ahead[order - 1]))
            else:
                peer = members.index(act.peer)
                peers[peer][act.kind == "recv"] += 1
                passed.append(Call(len(passed), what, act.size, peer, order, 0, batch << 8 | ahead[order - 1]))
        return Calls(
            comm=comm, comm_id=role, rank=members.index(rank), size=len(members), adopted=False, aborted=False,
            ended=False, collectives=len(made), collectives_returned=len(made), transfers=len(passed),
            transfers_returned=len(passed), digest=digest, is_crowded=False, moved_ns=SECOND, born_ns=0,
            peers=tuple(Partner(peer, *counts) for peer, counts in peers.items()), last=tuple(made[-256:]),
            last_transfers=tuple(passed[-self._kept :]),
        )  # fmt: skip

    def _ahead(self, rank: int) -> list[int]:
        """Return what `place` of each call says: known (1), and not come to (2), or long ago (4): nccl/marks.h."""
        behind = {id(work) for queue in self._streams[rank].values() for work in list(queue)[1:]}
        not_come_to = [id(work) in behind for *_, work in self.posted[rank]]
        first = max(0, len(not_come_to) - _KEPT_MARKS)
        said = 4 if first and not_come_to[first] else 2
        return [1 | said * (place >= first and is_behind) for place, is_behind in enumerate(not_come_to)]

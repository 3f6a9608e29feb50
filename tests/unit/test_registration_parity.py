"""Ranks that switch registrations alike hear of no difference, however often they do; ranks that differ do."""

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tracehook.log.tables import KINDS
from tracehook.symmetric_memory import registration_parity as parity

KEY = 7
LATE = 1.0  # seconds by which one rank switches after another
LOOK = 1.0  # seconds between two looks of a watchdog


class _Ranks:
    """Two ranks of one communicator with a watchdog each, in a time that only this test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.store = dist.HashStore()
        self.registering = [True, True]
        self.switched = [0.0, 0.0]
        self.looks = [parity.Registrations(partial(self.switched.__getitem__, rank)) for rank in range(2)]
        self.due = [self.now + self.random.uniform(0, LOOK) for _ in range(2)]
        self.posts: list[parity.Notice] = []
        self.read = [0, 0]
        self.said: list[tuple[int, str]] = []
        self.rank = 0
        core = SimpleNamespace(
            communicators=lambda: [self.row()],
            registering=lambda: self.registering[self.rank],
            find_communicator=lambda _: None,
        )
        monkeypatch.setattr(parity, "_core", core)
        monkeypatch.setattr(parity, "clock", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(parity, "warn", lambda text: self.said.append((self.rank, text)))

    def row(self) -> dict[str, object]:
        own = KINDS.index("own")
        return {"key": KEY, "size": 2, "rank": self.rank, "local": own, "failed": 0, "pointer": 1, "id": 1}

    def pass_to(self, end: float) -> None:
        """Let the watchdogs look until `end`."""
        while min(self.due) <= end:
            self.rank = self.due.index(min(self.due))
            self.now = self.due[self.rank]
            self.due[self.rank] += LOOK + self.random.uniform(0, 0.2)
            watchdog = self.looks[self.rank]
            self.posts += watchdog.step(self.store)
            for notice in self.posts[self.read[self.rank] :]:
                watchdog.hear(notice)
            self.read[self.rank] = len(self.posts)
        self.now = end

    def switch(self, rank: int, on: bool) -> None:
        if self.registering[rank] != on:
            self.registering[rank] = on
            self.switched[rank] = self.now


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_switch_alike_hear_nothing(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A comparison of both ways switches every few moments, one rank after the other."""
    ranks = _Ranks(monkeypatch, seed)
    on = True
    for _ in range(60):
        on = not on
        first = ranks.random.randrange(2)
        ranks.switch(first, on)
        ranks.pass_to(ranks.now + ranks.random.uniform(0, LATE))
        ranks.switch(1 - first, on)
        ranks.pass_to(ranks.now + ranks.random.choice((0.1, 1.0, 2.5, 4.0, 8.0)))
    ranks.pass_to(ranks.now + 30)
    assert ranks.said == []


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_stays_behind_is_named(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """After some common switches one rank leaves the last one out: a line says so."""
    ranks = _Ranks(monkeypatch, seed)
    on = True
    for _ in range(ranks.random.randrange(6)):
        on = not on
        for rank in range(2):
            ranks.switch(rank, on)
        ranks.pass_to(ranks.now + ranks.random.uniform(0.1, 8.0))
    ranks.switch(ranks.random.randrange(2), not on)
    ranks.pass_to(ranks.now + 30)
    assert {rank for rank, _ in ranks.said}, ranks.said

"""Peers that map each other's memory, on real devices. What the cases do: tests/rehearsal/jobs/peers.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu.launch import IN_VAIN, JOBS, launch
from gpu.test_gpu_audit import audited
from gpu.test_gpu_symmetric import play, told

ALL = 6  # repetitions in the job


def facts_of(case: str, ranks: int, log: Path, *known: str) -> list[dict[str, Any]]:
    """Run a case; return the facts of each rank, which has nothing mapped and nothing held at its end.

    `known`: rules of the audit that find something.
    """
    facts = told(play("peers.py", case, ranks=ranks, log=log), ranks)
    assert [each["left"] for each in facts] == [[True, True]] * ranks
    verdict = audited(log)
    assert {finding.rule for finding in verdict.findings} - IN_VAIN == set(known), verdict.sentence
    return facts


def others(rank: int, ranks: int) -> list[float]:
    """Return the ranks other than this one."""
    return [float(other) for other in range(ranks) if other != rank]


def test_gets_and_puts_over_several_repetitions(ranks: int, tmp_path: Path) -> None:
    """Tensors at an offset in a segment, new ones at each turn: all ranks get and put the right values."""
    for rank, facts in enumerate(facts_of("repetitions", ranks, tmp_path)):
        assert facts["got"] == [others(rank, ranks)] * ALL
        assert facts["put"] == [others(rank, ranks)] * ALL


def test_the_memory_of_a_freed_tensor_comes_again(ranks: int, tmp_path: Path) -> None:
    """A shared tensor is freed and its segment given back; peers see the new one, whatever its address."""
    for rank, facts in enumerate(facts_of("same_address", ranks, tmp_path)):
        assert facts["values"] == [others(rank, ranks)] * 3
        assert facts["segments"] == 3
        assert facts["freed"] is True


@pytest.mark.parametrize("case", ["one_hits", "pools"])
def test_values_are_right(case: str, ranks: int, tmp_path: Path) -> None:
    """One rank hits while others miss; memory of symmetric pools, by file descriptors."""
    for rank, facts in enumerate(facts_of(case, ranks, tmp_path)):
        assert facts["values"], facts
        assert all(values == others(rank, ranks) for values in facts["values"]), facts


def test_memory_of_expandable_segments(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocations under a tensor are mapped as one piece, written by the peer, given back, and replaced."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for rank, facts in enumerate(facts_of("allocations", ranks, tmp_path, "hook-stands-aside")):
        left, right = (rank - 1) % ranks, (rank + 1) % ranks
        assert facts["got"] == [float(left), 10.0 * left + 1, 10.0 * left + 2]
        assert (facts["put"], facts["before"]) == (100.0 + right, float(rank))
        assert facts["gone"][0] == "PeerTensorGone"
        assert (facts["freed"], facts["new"]) == (True, 200.0 + left)
    for rank, facts in enumerate(facts_of("many_allocations", ranks, tmp_path / "many", "hook-stands-aside")):
        left = (rank - 1) % ranks
        assert facts["ends"] == [10.0 * left, 10.0 * left + 1]


def test_a_free_waits_for_the_peers(ranks: int, tmp_path: Path) -> None:
    """What a peer still uses is not freed, and is freed once it has let go."""
    for facts in facts_of("freed_while_imported", ranks, tmp_path):
        assert facts["released"] is True
        assert facts["freed"] is True
        assert facts["gone"][0] == "PeerTensorGone"


@pytest.mark.parametrize(
    ("case", "keys"), [("semaphores", ("put", "got")), ("captured", ("outside", "replayed", "after"))]
)
def test_streams_wait_for_peers(case: str, keys: tuple[str, ...], ranks: int, tmp_path: Path) -> None:
    """Puts and gets that only streams order, eager and replayed from a graph."""
    for facts in facts_of(case, ranks, tmp_path):
        for key in keys:
            assert len(facts[key]) >= 2
            assert set(facts[key]) == {0.0}, facts


def test_a_peer_that_does_not_come_is_named(ranks: int, tmp_path: Path) -> None:
    """In time, with what it was waited for; afterwards the ranks are level again."""
    result = play("peers.py", "never_comes", ranks=ranks, log=tmp_path)
    first = told(result, ranks)[0]
    missing = f"rank{'s' * (ranks > 2)} {', '.join(map(str, range(1, ranks)))} did not come within the 0.5 s"
    assert set(first["texts"]) == {"no_group", "no_meeting", "no_exchange", "no_repeat", "no_repeat_again"}
    assert all(kind == "PeerTimeout" and missing in text for kind, text in first["texts"].values()), first["texts"]
    assert all(0.5 <= seconds < 1.5 for seconds in first["seconds"]), first["seconds"]
    assert first["level"] == others(0, ranks)
    assert first["anew"] == [50.0 + rank for rank in others(0, ranks)]


def test_a_killed_peer_lets_streams_go_on(ranks: int, tmp_path: Path) -> None:
    """What waits for it on a stream ends, calls that need it say so, and nothing of it stays mapped."""
    result = play("peers.py", "cut_off", ranks=ranks, log=tmp_path)
    found: dict[int, dict[str, Any]] = {rank: {} for rank in range(ranks - 1)}
    for rank, text in re.findall(r"fact (\d+) (\{.*\})", result.output):
        found[int(rank)].update(json.loads(text))
    for facts in found.values():
        assert facts["waited"] < 10
        assert {kind for kind, _ in facts["texts"].values()} == {"PeerLost"}
        assert facts["unmapped"] is True
        assert facts["left"] == [True, True]


def test_nothing_stays_mapped_or_open(ranks: int, tmp_path: Path) -> None:
    """Meeting, sharing and parting again and again takes no further mapping and no further descriptor."""
    facts = told(launch(JOBS / "peer_cycles.py", ranks, tmp_path), ranks)
    for rank, each in enumerate(facts):
        assert each["got"] == [[value, value] for value in others(rank, ranks)]
        first, *more, last = each["counts"][1:]  # the driver's own come with the first
        # What is left of each turn would be as many as there were turns. The driver's own number varies by one.
        assert last[0] - first[0] < len(more) + 1, each["counts"]
        assert last[1] - first[1] < len(more) + 1, each["counts"]

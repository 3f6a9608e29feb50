"""The tour: everything that can happen to a communicator and a segment, in one job of four ranks."""

from collections import Counter
from pathlib import Path

import pytest
from support.rehearsal import EXAMPLES, Rehearsal, rehearse

from tracehook.audit.summary import summarise

RANKS = 4


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """One run, with the ledger compared with the allocator's snapshot at each birth of a communicator."""
    log = tmp_path_factory.mktemp("tour")
    return rehearse(
        EXAMPLES / "tour.py", log=log, ranks=RANKS, torchrun=True, env={"SYMM_REGISTER_CHECK": "1"}, timeout=120
    )


def test_the_tour_ends_well(tour: Rehearsal) -> None:
    """Every step is checked by the job itself; no rule of NCCL is broken and no process is left."""
    tour.assert_good()
    assert "[10/10]" in tour.finished.out
    assert "rehearsal: no rule broken" in tour.finished.out


def test_every_rank_leaves_a_whole_log(tour: Rehearsal) -> None:
    """One log a rank, closed, without torn or foreign lines, without a gap in its numbers."""
    assert [log.rank for log in tour.logs] == list(range(RANKS))
    for log in tour.logs:
        assert (log.ended, log.torn, log.recovered, log.dropped) == (True, False, 0, 0)
        numbers = [event["seq"] for event in log.events if "seq" in event]
        assert numbers == list(range(1, len(numbers) + 1))
        assert not log.path.with_suffix(".ring").exists()


def test_nothing_is_left_registered(tour: Rehearsal) -> None:
    """Each registration is undone, or goes with the one communicator that was aborted."""
    for log in tour.logs:
        counts = summarise(log)
        assert (counts.local.left, counts.failures, counts.warnings) == (0, 0, 0)
        assert counts.aborted == 1
        assert counts.local.made == counts.local.undone + counts.local.dropped


def test_every_communicator_is_found(tour: Rehearsal) -> None:
    """The default group, the half, the split and the late group are seen on each rank, with their sizes."""
    for log in tour.logs:
        born = [event for event in log.events if event["event"] == "communicator.pending"]
        sizes = Counter(event["ranks"] for event in born)
        assert sizes[RANKS] >= 2, "the default and the late group"
        assert sizes[RANKS // 2] >= 2, "the half and the split"
        ready = {event["comm_id"] for event in log.events if event["event"] == "communicator.ready"}
        assert ready == {event["comm_id"] for event in born}


def test_ranks_agree_on_the_keys(tour: Rehearsal) -> None:
    """A communicator has one key on all its ranks, each rank a number of its own there, and no key is used twice."""
    seen: dict[str, list[tuple[int, int]]] = {}
    for log in tour.logs:
        mine = [event for event in log.events if event["event"] == "communicator.pending"]
        assert len({event["comm"] for event in mine}) == len(mine)
        for event in mine:
            seen.setdefault(event["comm"], []).append((event["comm_rank"], event["ranks"]))
    for key, members in seen.items():
        size = members[0][1]
        assert sorted(members) == [(rank, size) for rank in range(size)], key


def test_every_segment_is_on_every_communicator(tour: Rehearsal) -> None:
    """At each birth and each allocation the product of live segments and live communicators is registered."""
    for log in tour.logs:
        live: dict[int, set[int]] = {}
        segments: set[int] = set()
        for event in log.events:
            match event["event"]:
                case "segment.alloc" | "segment.adopt":
                    _assert_complete(live, segments)
                    segments.add(event["segment"])
                case "segment.free":
                    segments.remove(event["segment"])
                    assert all(event["segment"] not in held for held in live.values())
                case "communicator.pending":
                    _assert_complete(live, segments)
                    live[event["comm_id"]] = set()
                case "communicator.retire" | "communicator.abort":
                    del live[event["comm_id"]]
                case "register.local":
                    assert event["ok"]
                    assert event.get("effective", True)
                    live[event["comm_id"]].add(event["segment"])
                case "deregister.local":
                    assert event["ok"]
                    live[event["comm_id"]].remove(event["segment"])


def _assert_complete(live: dict[int, set[int]], segments: set[int]) -> None:
    assert all(held == segments for held in live.values())


def test_the_ledger_is_the_allocators(tour: Rehearsal) -> None:
    """Compared at each birth, the ledger never differs from the allocator's own snapshot."""
    for rank in range(RANKS):
        checks = tour.events("ledger.check", rank)
        assert len(checks) == len(tour.events("communicator.pending", rank))
        assert all(check["ok"] for check in checks)
    assert tour.events("ledger.difference") == []


def test_ranks_do_the_same(tour: Rehearsal) -> None:
    """The ranks register the same number of ranges of the same sizes, in the same order, on each communicator."""
    shapes = []
    for log in tour.logs:
        rows = [e for e in log.events if e["event"] in ("register.local", "deregister.local")]
        per_comm: dict[int, list[tuple[str, int]]] = {}
        for event in rows:
            per_comm.setdefault(event["comm_id"], []).append((event["event"], event["size"]))
        shapes.append([[row for row in made if row[0] == "register.local"] for made in per_comm.values()])
    assert all(shape == shapes[0] for shape in shapes)


def test_without_the_hook_the_tour_is_the_same(tmp_path: Path) -> None:
    """The job ends well without tracehook too, so that what the other tests see is not of its making."""
    rehearse(EXAMPLES / "tour.py", ranks=RANKS, torchrun=True, timeout=120).assert_good()
    assert list(tmp_path.iterdir()) == []

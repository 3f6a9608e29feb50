"""The tour: everything that can happen to a communicator and a segment, in one job of four ranks."""

import pytest
from support.audits import CLEAN, Audit
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


def test_every_registration_is_right(tour: Rehearsal) -> None:
    """The audit's rules: each segment on each communicator of its time, alike on all ranks, and undone in the end."""
    Audit(tour.logs[0].path.parent).expect(CLEAN, f"{RANKS} ranks")
    for log in tour.logs:
        assert (summarise(log).aborted, summarise(log).warnings) == (1, 0)


def test_the_ledger_is_the_allocators(tour: Rehearsal) -> None:
    """Compared at each birth, the ledger never differs from the allocator's own snapshot."""
    for rank in range(RANKS):
        checks = tour.events("ledger.check", rank)
        assert len(checks) == len(tour.events("communicator.pending", rank))
        assert all(check["ok"] for check in checks)
    assert tour.events("ledger.difference") == []

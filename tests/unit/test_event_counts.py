"""Counts of events by kind, from the ring's records."""

import json

import pytest

from tracehook.log.event_counts import EventCounts, Missed
from tracehook.log.journal import Journal
from tracehook.log.tables import ABOUT


@pytest.fixture
def tally():
    """A tally that has seen nothing."""
    return EventCounts()


def take(core, tally, tmp_path):
    """Have a journal write all events."""
    journal = Journal(core, tmp_path / "log.jsonl", {})
    journal.tally = tally
    journal.flush()


def test_only_calls_can_fail(core, tally, tmp_path):
    """The result of a registration is an error; a first use has none."""
    core.push("register.local", result=5)
    core.push("register.local")
    core.push("placement.first_use", config=7)
    take(core, tally, tmp_path)
    assert (tally.failures("register.local"), tally.failures("placement.first_use")) == (1, 0)


def test_ranks_that_miss_one_agreement_are_one_timeout(core, tally, tmp_path):
    """Each rank that missed it has an event; the agreement and its seconds count once, the ranks each."""
    for rank in (2, 3):
        core.push("agreement.timeout", comm=0xAB, comm_id=1, missing_rank=rank, duration_ns=2_000_000_000)
    core.push("agreement.timeout", comm=0xAB, comm_id=1, missing_rank=3, duration_ns=3_000_000_000)
    take(core, tally, tmp_path)
    assert (tally.timeouts(), tally.seconds("agreement.timeout")) == (2, 5.0)
    comm = f"{0xAB:016x}"
    assert tally.missed() == [(Missed(comm, 2), 1), (Missed(comm, 3), 2)]


def test_events_count_once_when_the_log_fails(core, tally, tmp_path):
    """What stays in the ring because nothing can be written is not counted again at each look."""
    journal = Journal(core, tmp_path / "absent" / "log.jsonl", {})
    journal.tally = tally
    core.push("segment.alloc")
    journal.flush()
    core.push("segment.alloc")
    journal.flush()
    journal.flush()
    assert journal.failed is not None
    assert core.drained == 0
    assert tally.count("segment.alloc") == 2


def test_an_event_of_a_newer_core_is_no_fault(core, tally, tmp_path):
    """The log's thread goes on when it meets a kind that the tables lack."""
    core.push("999")
    take(core, tally, tmp_path)
    assert core.drained == 1


def test_what_the_log_sums_counts_too(core, tally, tmp_path, monkeypatch):
    """Also if nothing else waited: then there is no record at all."""
    crowds = [(b"", 46, 46, (46, 10, 1 << 20, 10, 3))]
    monkeypatch.setattr(core, "peek_summed", lambda *_: crowds.pop() if crowds else None)
    take(core, tally, tmp_path)
    assert [tally.count(name) for name in ("segment.alloc", "segment.free", "register.local")] == [10, 10, 10]
    assert [tally.count(name) for name in ("range.map", "range.unmap")] == [3, 3]
    assert core.drained == 46
    (line,) = (json.loads(text) for text in next(tmp_path.glob("*.jsonl")).read_text().splitlines() if "summed" in text)
    assert line.keys() - {"event", "t_ns"} == set(ABOUT["log.summed"].fields), "the schema tells all of its fields"

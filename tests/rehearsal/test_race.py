"""More than the log can take, and a free beside an abort. Everything at once: tests/cpp/stress.cpp."""

from pathlib import Path

from support.rehearsal import rehearse


def test_lost_events_are_counted(tmp_path: Path) -> None:
    """What the log could not take is missing in its numbers, beyond what it sums; its end has the count."""
    run = rehearse("many_events.py", log=tmp_path, timeout=60).assert_good()
    log = run.log()
    numbers = [event["seq"] for event in log.events if "seq" in event]
    assert len(numbers) == len(set(numbers))
    assert numbers == sorted(numbers)
    lost = numbers[-1] - len(numbers) - sum(event["count"] for event in run.events("log.summed"))
    assert lost == log.dropped > 0, "the ring holds 65536 events, and the log's thread was kept from running"
    assert sum(event["count"] for event in run.events("log.dropped")) == lost
    assert len(run.finished.lines("the ring was full")) == 1, run.output


def test_freed_during_an_abort(tmp_path: Path) -> None:
    """A segment that is freed while an abort is under way is not given back before NCCL has let go of it."""
    run = rehearse("meanwhile.py", "freed_during_an_abort", log=tmp_path, faults="ncclCommAbort:slow@1=1s")
    assert run.facts() == {"freed": True}, run.output
    run.assert_good()

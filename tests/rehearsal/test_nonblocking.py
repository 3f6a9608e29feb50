"""Non-blocking communicators: registered when they are ready, and never called before."""

from pathlib import Path

from support.rehearsal import rehearse

from tracehook.audit.summary import summarise

NON_BLOCKING = {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}


def test_registered_once_ready(tmp_path: Path) -> None:
    """Each segment is registered exactly once with each non-blocking communicator, after it is ready."""
    faults = "ncclCommSplit:in_progress@*=700ms,ncclCommInitRankConfig:in_progress@1=300ms#rank1"
    run = rehearse("plain.py", ranks=2, log=tmp_path, env=NON_BLOCKING, faults=faults, timeout=60).assert_good()
    for log in run.logs:
        counts = summarise(log)
        assert (counts.communicators, counts.local.left, counts.failures, counts.warnings) == (2, 0, 0, 0)
        ready: set[int] = set()
        pairs = []
        for event in log.events:
            if event["event"] == "communicator.ready":
                assert event["comm_id"] not in ready
                ready.add(event["comm_id"])
            elif event["event"] == "register.local":
                assert event["comm_id"] in ready
                pairs.append((event["comm_id"], event["segment"]))
        assert len(ready) == 2
        assert len(pairs) == len(set(pairs)) == 4, "two segments on two communicators"
    for rank in (0, 1):
        status = run.facts(rank)["status"]
        assert [row["held"] for row in status["communicators"]] == [2, 2]
        assert run.facts(rank)["sum"] == 6.0


def test_ranks_agree_on_the_keys(tmp_path: Path) -> None:
    """The keys of non-blocking communicators are equal on their ranks, those of splits too."""
    run = rehearse("splits.py", ranks=2, log=tmp_path, env=NON_BLOCKING, timeout=60).assert_good()
    keys = [[event["comm"] for event in run.events("communicator.pending", rank)] for rank in (0, 1)]
    assert sorted(keys[0]) == sorted(keys[1])
    assert len(set(keys[0])) == 3


def test_freed_while_in_progress(tmp_path: Path) -> None:
    """A segment born and freed while a communicator is in progress is not registered with it, and nobody waits."""
    slow = "ncclCommInitRankConfig:in_progress@1=4s"
    run = rehearse("meanwhile.py", "freed", log=tmp_path, env=NON_BLOCKING, faults=slow).assert_good()
    (freed,), (ready,) = run.events("segment.free"), run.events("communicator.ready")
    assert freed["seq"] < ready["seq"], run.output
    assert not any(run.facts()["ready"]), "nobody has waited for it"
    assert run.facts()["held"] == [1]
    assert len(run.events("register.local")) == 1
    assert run.events("deregister.local") != []

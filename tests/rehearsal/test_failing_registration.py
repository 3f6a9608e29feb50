"""NCCL refuses a registration: all or nothing on that communicator, one warning, and the job runs on."""

from pathlib import Path

from support.rehearsal import rehearse

from tracehook.audit.summary import summarise


def test_all_or_nothing(tmp_path: Path) -> None:
    """The third registration fails: that communicator keeps none and gets no more, the other keeps all."""
    run = rehearse("plain.py", log=tmp_path, faults="ncclCommRegister:fail@2=1").assert_good()
    facts = run.facts()
    assert facts["end"] == "reached"
    assert facts["sum"] == 1.0
    rows = sorted(facts["status"]["communicators"], key=lambda row: row["id"])
    assert [(row["failed"], row["held"]) for row in rows] == [(True, 0), (False, 3)]
    assert [e["error"] for e in run.events("communicator.failed")] == [1]
    failed = run.events("communicator.failed")[0]["comm_id"]
    after = False
    for event in run.log().events:
        after = after or event["event"] == "communicator.failed"
        assert not (after and event["event"] == "register.local" and event["comm_id"] == failed)
    assert len(run.finished.lines("failed with NCCL error 1")) == 1, run.output
    assert summarise(run.log()).local.left == 0


def test_failing_deregistration(tmp_path: Path) -> None:
    """A deregistration that fails is said once, with the error, and the job runs on. It is tried again at the end."""
    run = rehearse("plain.py", log=tmp_path, faults="ncclCommDeregister:fail@1=3")
    assert run.facts()["end"] == "reached", run.output
    failed = [e for e in run.events("deregister.local") if not e["ok"]]
    assert [e["error"] for e in failed] == [3]
    said = run.finished.lines("tracehook: deregistering")
    assert len(said) == 1, run.output
    assert "failed" in said[0]
    assert run.broken == [], "the memory was kept until NCCL had let go of it"


def test_failing_creation(tmp_path: Path) -> None:
    """A communicator whose creation fails is none: nothing is registered, and torch's error reaches the program."""
    run = rehearse("plain.py", log=tmp_path, faults="ncclCommInitRankConfig:fail@1=3")
    assert run.status == 1, run.output
    assert "DistBackendError" in run.finished.err
    assert run.events("communicator.pending") == []
    assert run.events("register.local") == []
    assert run.log().ended

"""Everything at once, on threads of one process with two devices, as fast as it goes."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse

from tracehook.audit.summary import summarise

# torch's recorder of collectives puts a group that it sees first into a map without a lock: where groups come on two
# threads at once, the process dies there, with tracehook or without.
WITHOUT_FLIGHT_RECORDER = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_BUFFER_SIZE": "0"}


@pytest.mark.parametrize("mode", ["switch", "abort"])
def test_everything_at_once(tmp_path: Path, mode: str) -> None:
    """No rule is broken, the ledger never differs, and each communicator ends with each segment of its device."""
    env = {"SYMM_REGISTER_CHECK": "1", **WITHOUT_FLIGHT_RECORDER}
    if mode == "switch":
        env["TRACEHOOK_EMU_STRICT_L7"] = "0"  # it switches under collectives, as no job may: that is what L7 says
    run = rehearse("race.py", "10", "51", mode, log=tmp_path, devices=2, env=env, timeout=110)
    facts = run.facts()
    assert facts.get("failures") == [], run.output
    assert run.broken == [], run.output
    assert run.status == 0, run.output
    assert min(facts["rounds"][name] for name in ("allocate 0", "allocate 1")) > 300, facts
    assert min(facts["rounds"][name] for name in ("destroy", "another", "reduce 0", "reduce 1")) > 50, facts
    assert facts["state"] == "on"
    assert facts["wrong"] == []
    assert facts["communicators"] == 4, "the default group's on each device, and the pair's two"
    checks = run.events("ledger.check")
    assert len(checks) > 50
    assert all(check["ok"] for check in checks)
    assert run.events("ledger.difference") == run.events("segment.unknown") == []
    assert all(e["ok"] for e in run.events("register.local") + run.events("deregister.local"))
    # Those of the pair that torch.cuda.nccl keeps to the end are left, and nothing else.
    assert summarise(run.log()).local.left == sum(facts["live"].values()) or run.log().dropped


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
    run = rehearse("freed_during_abort.py", log=tmp_path, faults="ncclCommAbort:slow@1=1s")
    assert run.facts() == {"freed": True}, run.output
    run.assert_good()

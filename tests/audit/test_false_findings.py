"""What looks like a fault and is none, and what looks clean and is not: the logs of a clean job, changed a little."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, UNUSABLE, Audit, change, log_of, ring_of, with_begin
from typer.testing import CliRunner

from audit.goldens import DIRECTORY
from tracehook.commands import app
from tracehook.settings import Settings, shared

Event = dict[str, Any]
RETIRE = "communicator.retire"


def _edit(log: Path, edit: Callable[[Event], Event | None]) -> None:
    """Replace each event by what `edit` makes of it; None takes it out."""
    events = [edit(json.loads(line)) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(event) + "\n" for event in events if event is not None))


def _without(log: Path, event: str, which: int = 0) -> None:
    """Take the event of that kind and place out, as if it had been lost."""
    found = [each for each in map(json.loads, log.read_text().splitlines()) if each["event"] == event]
    _edit(log, lambda each: None if each == found[which] else each)


def test_a_question_about_nobody_is_refused(logs: Path) -> None:
    """A rank or communicator that no log knows proves nothing."""
    Audit(logs, "--rank", "9").expect(UNUSABLE, "rank 9")
    Audit(logs, "--rank", "-1", "--rank", "1").expect(UNUSABLE, "rank -1")
    Audit(logs, "--comm", "zzz").expect(UNUSABLE, "'zzz'")
    Audit(logs, "--rank", "1").expect(CLEAN, "Clean: ")


def test_findings_about_others_are_no_proof(logs: Path) -> None:
    """Asked about a rank that did nothing wrong, the audit says that others did; in the JSON, with their files."""
    change(log_of(logs, 1), lambda lines: lines[:-1])
    said = Audit(logs, "--rank", "0").expect(CLEAN, "No finding about rank 0; there is 1 other finding.").out
    assert "Clean" not in said
    assert json.loads(Audit(logs, "--rank", "0", "--json").out)["other_findings"] == 1
    Audit(logs, "--rank", "1").expect(FINDINGS, "no-end")
    told = json.loads(Audit(logs, "--json").out)
    assert [finding["file"] for finding in told["findings"]] == [log_of(logs, 1).name]


def test_logs_without_a_device_prove_nothing(logs: Path) -> None:
    """A directory that has only the launcher's own log, or those of a job that has just begun, is not clean."""
    for rank in (0, 1):
        log_of(logs, rank).unlink()
    shutil.copy(next((DIRECTORY / "clean").glob("job.rank-.*")), logs)
    Audit(logs).expect(UNUSABLE, "1 log without any event of a device", "nothing to prove; were the ranks started")
    raised = {"how": "exception", "exception": "ChildFailedError", "message": "train.py FAILED", "status": 1}
    _edit(next(logs.glob("job.rank-.*")), lambda event: event | (raised if event["event"] == "trace.end" else {}))
    Audit(logs).expect(UNUSABLE, "nothing to prove; before that, ChildFailedError ended a process: read the stderr")


def test_a_log_whose_beginning_is_damaged_is_a_finding(logs: Path) -> None:
    """It is not left out as a file of another kind, also where ranks may be missing."""
    change(log_of(logs, 1), lambda lines: [b"\0" * len(lines[0]), *lines[1:]])
    Audit(logs, "--allow-incomplete").expect(FINDINGS, "damaged-file", log_of(logs, 1).name)


@pytest.mark.parametrize(("ended_by", "is_missing"), [("exception", False), ("exit", True)])
def test_a_rank_that_raised_where_its_communicator_was_made_left_a_log(
    logs: Path, ended_by: str, is_missing: bool
) -> None:
    """As where two ranks took one device. A rank that ended in order without the communicator is missing in it."""
    _edit(log_of(logs, 1), lambda event: event if event.get("seq", 0) <= 2 and "comm" not in event else None)
    raised = {"how": ended_by, "exception": "DistBackendError", "message": "Duplicate GPU", "status": 1}
    _edit(log_of(logs, 1), lambda event: event | (raised if event["event"] == "trace.end" else {}))
    said = Audit(logs).expect(FINDINGS).out
    assert ("missing-ranks" in said) == is_missing, said


def test_the_time_of_a_place_on_earth(logs: Path) -> None:
    """`--since` takes a time with its offset from UTC."""
    for rank in (0, 1):
        with_begin(log_of(logs, rank), time="2026-11-21T15:32:03+00:00")
    Audit(logs, "--since", "2026-11-21T16:32:00+0100").expect(CLEAN)
    Audit(logs, "--since", "2026-11-21T17:33:00+0100").expect(UNUSABLE, "began at or after")


def test_a_child_of_a_rank_is_no_rank(logs: Path) -> None:
    """A data loader's process has its parent's rank, and may end without a word, also if it uses a device."""
    main = [json.loads(line) for line in log_of(logs, 1).read_text().splitlines()]
    begin = main[0] | {"pid": 99, "t_ns": main[5]["t_ns"]}
    (logs / "clean.rank1.vm.99.jsonl").write_text(json.dumps(begin) + "\n")
    Audit(logs).expect(CLEAN)
    (had_one,) = [event["t_ns"] for event in main if event["event"] == "communicator.pending"][:1]
    segment = next(event for event in main if event["event"] == "segment.alloc")
    late = [begin | {"t_ns": had_one + 1}, segment | {"t_ns": had_one + 2, "seq": 1}]
    (logs / "clean.rank1.vm.99.jsonl").write_text("".join(json.dumps(event) + "\n" for event in late))
    Audit(logs).expect(CLEAN)
    (logs / "clean.rank1.vm.99.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in [begin | {"t_ns": had_one - 1}, *late[1:]])
    )
    Audit(logs).expect(FINDINGS, "no-end")


def test_a_rank_that_never_got_to_its_device_is_one(logs: Path) -> None:
    """Without another process of its rank it did not end well."""
    change(log_of(logs, 1), lambda lines: lines[:1])
    done = Audit(logs, "--json").expect(FINDINGS)
    assert "no-end" in done.rules()


def test_each_machine_counts_its_own_attempts(logs: Path) -> None:
    """Where machines come and go, ranks of one round may have different attempts."""
    with_begin(log_of(logs, 1), attempt=1)
    Audit(logs).expect(CLEAN)


def test_a_registration_that_began_before_the_abort(logs: Path) -> None:
    """An abort does not wait for ever for a call that is under way: it may be logged after it."""
    log = log_of(logs, 1)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    first = next(event for event in events if event["event"] == "register.local")
    (died,) = (each for each in events if (each["event"], each.get("comm_id")) == (RETIRE, first["comm_id"]))
    _edit(log, lambda event: event | {"event": "communicator.abort"} if event == died else event)
    tail = first | {"seq": len(events) - 1, "segment": 999, "t_ns": events[-1]["t_ns"]}
    *lines, last = log.read_text().splitlines(keepends=True)
    began_before = (events[-1]["t_ns"] - died["t_ns"]) / 1000 + 5
    for us, is_fault in ((began_before, False), (1.0, True)):
        log.write_text("".join([*lines, json.dumps(tail | {"us": us}) + "\n", last]))
        assert ("event-after-death" in Audit(logs, "--json").rules()) == is_fault


@pytest.mark.parametrize("event", ["segment.free", "deregister.local", "communicator.pending", "register.window"])
def test_what_was_lost_is_said_once(logs: Path, event: str) -> None:
    """Where an event is missing, what would have balanced with it is not called a fault."""
    _without(log_of(logs, 1), event)
    assert Audit(logs, "--json").expect(FINDINGS).rules() == {"lost-events"}


def test_two_runs_in_one_directory_are_not_compared(logs: Path) -> None:
    """Processes without a rank or a job's name are compared with those that share a communicator only."""
    for rank in (0, 1):
        log = log_of(logs, rank)
        with_begin(log, rank=None, world_size=None, job=None, attempt=None)
        other = logs / f"other.rank-.vm.{rank}.jsonl"
        shutil.copy(log, other)
        _edit(other, lambda event: event | ({"comm": f"{int(event['comm'], 16) ^ 1:016x}"} if "comm" in event else {}))
        with_begin(other, pid=rank, allocator="max_split_size_mb:64")
    Audit(logs).expect(CLEAN)


def test_versions_of_processes_without_a_rank(logs: Path) -> None:
    """Where no launcher gave ranks, what differs is said all the same; unknown is different from known."""
    for rank in (0, 1):
        with_begin(log_of(logs, rank), rank=None, world_size=None)
    with_begin(log_of(logs, 1), nccl=None)
    Audit(logs).expect(FINDINGS, "versions-differ", "nccl is 22809 on 1 process; unknown on 1 process")


@pytest.mark.parametrize("variable", sorted(shared(Settings())))
def test_each_setting_that_ranks_share_is_compared(logs: Path, variable: str) -> None:
    """Of each the first line of a log has the value; the audit says who has which."""
    field = {"MEMORY": "segment_memory"}.get(name := variable.removeprefix("SYMM_REGISTER_"), name.lower())
    for rank, value in enumerate(("one", "other")):
        with_begin(log_of(logs, rank), **{field: value})
    Audit(logs).expect(FINDINGS, "versions-differ", f"{field} is one on rank 0; other on rank 1")


def test_a_job_of_processes_without_a_rank_can_be_chosen(logs: Path) -> None:
    """`--job` leaves the processes of another job out, ranks or no ranks."""
    for rank, job in enumerate(("111", "222")):
        with_begin(log_of(logs, rank), rank=None, world_size=None, job=job)
    assert all(job in Audit(logs).err for job in ("111", "222"))
    Audit(logs, "--job", "111", "--json").expect(FINDINGS)
    assert json.loads(Audit(logs, "--job", "111", "--json").out)["looked"]["processes"] == 1


@pytest.mark.parametrize("change_it", [{"addr": "0x10000"}, {"size": 4096}])
def test_a_registration_of_other_bytes(logs: Path, change_it: Event) -> None:
    """A registration has the address and the size of its segment."""
    events = map(json.loads, log_of(logs, 1).read_text().splitlines())
    first = next(event for event in events if event["event"] == "register.local")
    _edit(log_of(logs, 1), lambda event: event | change_it if event == first else event)
    assert Audit(logs, "--json").expect(FINDINGS).rules() == {"registered-elsewhere"}


def test_a_copy_of_a_log_counts_once(logs: Path) -> None:
    """A second log of the same process is named and left out."""
    looked = json.loads(Audit(logs, "--json").out)["looked"]
    log = log_of(logs, 1)
    shutil.copy(log, logs / "clean.rank1.vm (1).jsonl")
    done = Audit(logs, "--json").expect(CLEAN, "another log of the process of")
    assert json.loads(done.out)["looked"] == looked


def test_what_the_ring_counted_is_lost(logs: Path) -> None:
    """Events that found the ring full after its log was last written are missed."""
    log = log_of(logs, 1)
    events = log.read_bytes().count(b"\n") - 2
    change(log, lambda lines: lines[:-1])
    ring = bytearray(ring_of(0, drained=events))
    dropped = 8 + 4 + 4 + 8 * 3
    ring[dropped : dropped + 8] = (500).to_bytes(8, "little")
    log.with_suffix(".ring").write_bytes(ring)
    Audit(logs).expect(FINDINGS, "500 events found the ring full", "no-end")


def test_damage_before_a_line_without_its_end(logs: Path) -> None:
    """A last line that is whole but for its newline does not hide another one that is no event."""
    change(log_of(logs, 1), lambda lines: [*lines[:9], b"garbage\n", *lines[9:-1], lines[-1][:-1]])
    Audit(logs).expect(FINDINGS, "damaged-file", "1 line of", "line 10")


@pytest.mark.parametrize("fields", [{"time": "1970-01-02T00:00:00+00:00"}, {"time": None}])
def test_a_host_with_a_wrong_clock(logs: Path, fields: Event) -> None:
    """Decades between two hosts are no reason to fail."""
    with_begin(log_of(logs, 1), host="other", **fields)
    Audit(logs).expect(CLEAN)
    page = logs.parent / "page.html"
    done = CliRunner().invoke(app, ["report", str(logs), "-o", str(page)])
    assert done.exit_code == 0, done.output


def test_memory_of_no_segment_has_no_number(tmp_path: Path) -> None:
    """What peers map of an expandable segment has no number of a segment; a fault with it is named all the same."""
    logs = tmp_path / "logs"
    shutil.copytree(DIRECTORY / "peer-mapped-twice", logs)

    def without_numbers(event: Event) -> Event:
        left_out = ("segment", "peer_segment") if event["event"].startswith("ipc.") else ()
        return {name: value for name, value in event.items() if name not in left_out}

    for rank in (0, 1):
        _edit(log_of(logs, rank), without_numbers)
    told = "mapped memory of peer 0 (24 MiB) again, and had it mapped already"
    Audit(logs).expect(FINDINGS, "peer-mapped-twice", told)

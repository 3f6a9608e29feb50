"""What the audit says of how processes ended, from logs whose last lines were changed."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, Audit, change, log_of, with_begin

from audit.goldens import unpack
from tracehook.log.file_name import stacks_of

BOOM = {"exception": "ValueError", "message": "boom"}


def end(log: Path, *events: dict[str, Any]) -> None:
    """Give a log these last lines instead of its own."""

    def replaced(lines: list[bytes]) -> list[bytes]:
        last = json.loads(lines[-1])
        number = json.loads(lines[-2])["seq"]
        made = [{"t_ns": last["t_ns"], "seq": number + place, **event} for place, event in enumerate(events, 1)]
        return [*lines[:-1], *(json.dumps(one).encode() + b"\n" for one in made)]

    change(log, replaced)


RAISED = {"event": "python.exception", **BOOM}


@pytest.mark.parametrize(
    ("last", "told"),
    [
        # It hung in its exit handlers, or was killed there: the missing end is not named.
        ([RAISED], "rank 1 ended by ValueError: boom; after that it never came to its end"),
        # The last line knows better than the hook.
        ([RAISED, {"event": "trace.end", "how": "exit"}], ""),
        # The ring of a process that was killed has the event alone.
        ([{"event": "python.exception"}], "rank 1 ended by an exception"),
        ([{"event": "python.exit", "status": 0}], ""),
        # A hook of the program, which wants no hanging end, calls os._exit.
        ([RAISED, {"event": "python.exit", "status": 1}], "rank 1 ended by ValueError: boom. What"),
    ],
    ids=["in its exit handlers", "no end", "without text", "os._exit(0)", "os._exit(1) in a hook"],
)
def test_how_a_process_ended_is_one_finding(logs: Path, last: list[dict[str, Any]], told: str) -> None:
    """What raised is named, and not what followed from it; an end in order is none."""
    end(log_of(logs), *last)
    done = Audit(logs).expect(FINDINGS if told else CLEAN, told)
    assert not [rule for rule in ("no-end", "exit-status") if rule in done.out]


def test_who_says_which_rank_did_not_come_to_a_monitored_barrier_comes_first(logs: Path) -> None:
    """The others only hear that rank 0 failed, perhaps sooner than it has told."""
    heard = "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    late = log_of(logs, 0)
    end(log_of(logs), {"event": "python.exception", "exception": "RuntimeError", "message": heard})
    said = {"exception": "RuntimeError", "message": "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 10000 ms"}
    end(late, {"event": "python.exception", **said})
    change(late, lambda lines: [*lines[:-1], json.dumps(json.loads(lines[-1]) | {"t_ns": 1 << 60}).encode() + b"\n"])
    last = Audit(logs).expect(FINDINGS).out.splitlines()[-1]
    assert "rank 0 ended by RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier" in last


@pytest.mark.parametrize(
    ("last", "is_left"),
    [
        ({"event": "trace.end", "how": "exit"}, True),
        ({"event": "trace.end", "how": "exit", "status": 0}, True),
        ({"event": "python.exit", "status": 0}, True),
        ({"event": "python.exit", "status": 1}, False),
        ({"event": "trace.end", "how": "exit", "status": 2}, False),
        ({"event": "trace.end", "how": "exception", **BOOM}, False),
    ],
)
def test_what_a_failure_left_is_its_consequence(tmp_path: Path, last: dict[str, Any], is_left: bool) -> None:
    """Registrations that are left are a finding of their own only where the program meant to end."""
    logs = unpack(GOLDEN.with_name("left-at-end"), tmp_path)
    for rank in (0, 1):
        end(log_of(logs, rank), last)
    assert ("left-at-end" in Audit(logs, "--json").rules()) == is_left


def with_detail(lines: list[bytes]) -> list[bytes]:
    """Return the lines of a log, with that setting in the first."""
    begin = json.loads(lines[0])
    begin["nccl_settings"] = [*begin.get("nccl_settings", ()), "TORCH_DISTRIBUTED_DEBUG=DETAIL"]
    return [json.dumps(begin).encode() + b"\n", *lines[1:]]


def test_a_group_that_torch_wraps_is_not_left(tmp_path: Path) -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL the communicator stays, although the program destroys its group."""
    logs = unpack(GOLDEN.with_name("left-at-end"), tmp_path)
    for rank in (0, 1):
        change(log_of(logs, rank), with_detail)
    Audit(logs).expect(CLEAN)


def raising(event: str, place: str, **more: Any) -> Callable[[list[bytes]], list[bytes]]:
    """Return a change: an exception comes from a line of the program, just before the end of the log."""

    def changed(lines: list[bytes]) -> list[bytes]:
        last = json.loads(lines[-1])
        told = {"event": event, "t_ns": last["t_ns"], "seq": last.get("seq", 0) + 9, **BOOM, "raised_at": place, **more}
        return [*lines, json.dumps(told).encode() + b"\n"]

    return changed


def stacks_at(t_ns: int, *frames: str) -> str:
    """Return the stacks of a process at one moment."""
    return f"tracehook stacks t_ns={t_ns} main=0x0a\nThread 0x0a (most recent call first):\n" + "".join(frames)


def test_the_line_of_the_program_stands_with_its_exception(logs: Path) -> None:
    """In words without its folder, in JSON with it."""
    end(log_of(logs), {"event": "python.exception", **BOOM, "raised_at": "/home/me/train.py:41 in step"})
    place = {"rank": 1, "file": "/home/me/train.py", "line": 41, "function": "step", "waits_for": None, "caller": ""}
    Audit(logs).expect(FINDINGS, "rank 1 ended by ValueError: boom; after that it never came to its end; the exception "
                       "came from train.py:41 in step. What to do now")  # fmt: skip
    (finding,) = json.loads(Audit(logs, "--json").out)["findings"]
    assert finding["places"] == [place]


def test_ranks_whose_calls_differ_are_told_with_the_lines_where_they_were_then(tmp_path: Path) -> None:
    """Later they are elsewhere, and are ended there."""
    logs = unpack(GOLDEN.with_name("calls-differ"), tmp_path)
    for rank, line in ((2, 7), (3, 6)):
        log = log_of(logs, rank)
        t_ns = json.loads(log.read_bytes().splitlines()[-1])["t_ns"]
        then, later = (f'  File "/x/t.py", line {number} in f\n' for number in (line, 99))
        stacks_of(log).write_text(stacks_at(t_ns, then) + stacks_at(t_ns + 1, later))
    told = "; when that came out, rank 2 was at t.py:7 in f; rank 3 was at t.py:6 in f. What to do now"
    Audit(logs).expect(FINDINGS, told)


def test_ranks_that_others_ended_are_told_with_the_lines_where_they_were(tmp_path: Path) -> None:
    """They may have waited for each other outside of NCCL, of which the logs know nothing more."""
    logs = unpack(GOLDEN.with_name("ended-by-others"), tmp_path)
    barrier = '  File "/a/torch/distributed/distributed_c10d.py", line 5 in barrier\n'
    for rank, line in ((0, 7), (1, 8), (2, 8), (3, 8)):
        inside = barrier if rank else ""
        stacks_of(log_of(logs, rank)).write_text(stacks_at(1 << 60, inside, f'  File "/x/t.py", line {line} in f\n'))
    told = (
        " sent; rank 0 is at t.py:7 in f; ranks 1-3 are at t.py:8 in f; ranks 1-3 were in barrier of torch.distributed,"
        " and may have waited for rank 0, which was in no such function"
    )
    Audit(logs).expect(FINDINGS, f"{told}. What to do now")


def test_the_launchers_of_several_hosts_are_one_finding(tmp_path: Path) -> None:
    """Each ends the ranks of its host. Of two processes on a host one may have ended the first rank."""
    logs = unpack(GOLDEN.with_name("ended-by-others"), tmp_path)
    hosts = ("a", "a", "b", "b")
    for rank, (host, sender) in enumerate(zip(hosts, (70, 70, 80, 80), strict=True)):
        with_begin(log_of(logs, rank), host=host)
        set_sender(log_of(logs, rank).with_suffix(".ring"), sender)
    Audit(logs).expect(FINDINGS, "ranks 0, 1, 2, 3 were ended by signal 15, which a process on each of 2 hosts sent.")
    set_sender(log_of(logs, 0).with_suffix(".ring"), 60)
    Audit(logs).expect(
        FINDINGS,
        "rank 0 was ended by signal 15, which process 60 sent",
        "rank 1 was ended by signal 15, which process 70 sent",
        "ranks 2, 3 were ended by signal 15, which process 80 sent",
    )


def set_sender(ring: Path, sender: int) -> None:
    """Say which process sent the signal that ended this one; its place: :mod:`tracehook.log.ring`."""
    data = bytearray(ring.read_bytes())
    struct.pack_into("<i", data, struct.calcsize("<8sIIQQQQQQQI"), sender)
    ring.write_bytes(data)


def test_a_rank_that_a_fault_ended_is_told_with_its_line(tmp_path: Path) -> None:
    """It wrote its stacks before it ended."""
    logs = unpack(GOLDEN.with_name("rank-failed-fault"), tmp_path)
    stacks_of(log_of(logs, 1)).write_text(stacks_at(1 << 60, '  File "/x/t.py", line 7 in f\n'))
    Audit(logs).expect(FINDINGS, "rank 1 ended by signal 11 (SIGSEGV)", "; rank 1 was at t.py:7 in f. What to do now")


@pytest.mark.parametrize(
    ("innermost", "told"),
    [
        ("/a/torch/distributed/distributed_c10d.py", "; rank 3 went on to its all_reduce of torch.distributed"),
        ("/a/numpy/all_reduce.py", " (called at t.py:9 in main). What to do now"),
    ],
)
def test_a_missing_rank_that_may_wait_for_others_is_told_so(tmp_path: Path, innermost: str, told: str) -> None:
    """It waits itself in a collective of Gloo. The line that called a function of the program stands beside it."""
    logs = unpack(GOLDEN.with_name("rank-missing-computes"), tmp_path)
    t_ns = json.loads(log_of(logs, 3).read_bytes().splitlines()[-1])["t_ns"]
    frames = ((innermost, 5, "all_reduce"), ("/x/t.py", 8, "mean"), ("/x/t.py", 9, "main"), ("/x/t.py", 99, "<module>"))
    stacks = stacks_at(t_ns, *(f'  File "{file}", line {line} in {function}\n' for file, line, function in frames))
    stacks_of(log_of(logs, 3)).write_text(stacks.replace("/a/numpy", "/a/site-packages/numpy"))
    Audit(logs).expect(FINDINGS, "; rank 3 is at t.py:8 in mean (called at t.py:9 in main)", told)


def test_an_exception_that_ended_a_thread_of_the_missing_rank_stands_in_the_last_line(tmp_path: Path) -> None:
    """A loader that is gone feeds its queue no more. One of another rank is no cause, and stands above alone."""
    logs = unpack(GOLDEN.with_name("rank-missing-computes"), tmp_path)
    change(log_of(logs, 0), raising("thread.exception", "/x/t.py:9 in save", thread_name="saver"))
    change(log_of(logs, 3), raising("thread.exception", "/x/t.py:8 in load", thread_name="loader"))
    last = Audit(logs).expect(FINDINGS).out.splitlines()[-1]
    assert "(rank-missing)" in last
    assert "; rank 3 made no other call" in last
    assert (
        ". This may be the cause: rank 3: ValueError ended thread loader: boom; the exception came from t.py:8 in "
        "load. What to do now: "
    ) in last
    assert "saver" not in last


def test_json_has_each_finding_and_its_advice(logs: Path) -> None:
    """The rows fold what ranks did alike; a program that reads gets both ranks, and what comes first as people do."""
    for rank in (0, 1):
        end(log_of(logs, rank), {"event": "trace.end", "how": "exception", "exception": "KeyboardInterrupt"})
    told = json.loads(Audit(logs, "--json").expect(FINDINGS).out)
    assert [one["ranks"] for one in told["findings"]] in ([[0], [1]], [[1], [0]])
    assert all(one["advice"].endswith(".") for one in told["findings"])
    assert told["first_finding"]["ranks"] == [0, 1]
    assert told["first_divergence"] is None
    assert told["sentence"].startswith("First finding, at ")
    assert told["sentence"].endswith(told["first_finding"]["advice"])


def test_a_rank_that_is_asked_for_is_shown_with_those_that_did_alike(logs: Path) -> None:
    """Else it would look like a divergence of that rank."""
    for rank in (0, 1):
        end(log_of(logs, rank), {"event": "trace.end", "how": "exit", "status": 3})
    Audit(logs, "--rank", "1").expect(FINDINGS, "First finding", "ranks 0, 1 ended with exit status 3")

"""The timeline, read back with Perfetto's own messages and held against the log."""

import itertools
import json
from collections import Counter

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("perfetto")

from support import trace
from support.generated_logs import write_job

from tracehook.audit.finding import Finding
from tracehook.audit.store import Store
from tracehook.views import timeline
from tracehook.views.output import replacing

MIB = 1 << 20
BEGIN = {"event": "trace.begin", "schema": "1.2", "t_ns": 1_000, "rank": 0, "pid": 10, "host": "a"}
BEGIN |= {"time": "2026-11-21T12:00:00.000001+00:00"}
COMM = {"device": 0, "comm": "00000000000000ab", "comm_id": 1, "comm_rank": 0}
SEGMENT = {"device": 0, "segment": 1, "addr": "0x7f0000000000", "size": 2 * MIB}


def _log(directory, *events, name="job.rank0.a.10.jsonl", **begin):
    directory.mkdir(exist_ok=True)
    lines = [BEGIN | begin]
    for seq, event in enumerate(events, start=1):
        lines.append({"seq": seq, "t_ns": 2_000 + 1_000 * seq} | event)
    directory.joinpath(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def _trace(directory, findings=()):
    target = directory.parent / "trace.pftrace"
    with Store(directory) as store, replacing(target) as file:
        written = timeline.write(store, findings, file)
    out = trace.read(target)
    assert (len(out.written), len(out.instants)) == (written.slices, written.instants)
    return out


@pytest.fixture
def drawn(tmp_path):
    """Write the log of one process, and return what its timeline shows."""
    return lambda *events, **begin: _trace(_log(tmp_path / "logs", *events, **begin))


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Four ranks that allocate, register and free in one another; the second was killed."""
    directory = tmp_path_factory.mktemp("generated") / "logs"
    write_job(directory, ranks=4, events=300)
    events = [json.loads(line) for file in directory.iterdir() for line in file.read_text().splitlines()]
    return events, _trace(directory)


def test_slices_are_read_as_they_were_written(generated):
    """Whatever overlaps in a job, Perfetto's stack gives every slice the end that was meant."""
    _, out = generated
    key = [(one.track, one.start, one.end, one.name) for one in out.written]
    assert sorted(key) == sorted((one.track, one.start, one.end, one.name) for one in out.nested)
    assert all(one.depth == 0 for one in out.nested if "registration" in one.category or "segment" in one.category)


def test_every_event_of_the_log_is_there(generated, drawn):
    """Each event is a slice or an instant, or it is the beginning or end of one."""
    events, out = generated
    said = Counter(event["event"] for event in events)
    shown = Counter(one.name for one in out.nested + out.instants if one.category in ("call", "event"))
    drawn = {"trace.begin", "trace.end", "segment.alloc", "segment.free", "pool.grow"}
    assert shown == Counter({name: count for name, count in said.items() if name not in drawn})
    kinds = Counter(one.category for one in out.nested)
    assert kinds["segment"] == said["segment.alloc"]
    assert kinds["pool segment"] == said["pool.grow"]
    assert kinds["registration.local"] == said["register.local"]
    assert kinds["registration.window"] == said["register.window"]
    assert kinds["communicator"] == said["communicator.pending"]
    assert kinds["process"] == said["trace.begin"] == 4


def test_a_call_lasts_as_long_as_the_log_says(generated):
    """`us` is the time before the event."""
    events, out = generated
    calls = [one for one in out.nested if one.category == "call" and one.name == "register.local"]
    timed = [event for event in events if event["event"] == "register.local" and "us" in event]
    assert len(calls) == len(timed)
    assert sum(one.end - one.start for one in calls) == pytest.approx(
        sum(e["us"] for e in timed) * 1000, abs=len(calls)
    )
    assert all(one.end - one.start == pytest.approx(one.arguments["us"] * 1000, abs=1) for one in calls)


def test_the_counters_follow_the_log(generated):
    """The bytes of segments are what the log's own total says after each event."""
    events, out = generated
    totals = [e["total"] for e in events if e["event"] in ("segment.alloc", "segment.free")]
    assert Counter(out.counter("segment bytes")) == Counter(totals)
    pools = [e["pool_bytes"] for e in events if e["event"] == "pool.grow"]
    assert Counter(out.counter("pool bytes")) == Counter(pools)


def test_processes_stand_in_the_order_of_ranks(generated):
    """A process is called by its rank, host and pid, and the ranks stand one below the other."""
    _, out = generated
    processes = [track for track in out.tracks.values() if track.HasField("process")]
    assert [track.process.process_name for track in processes] == [f"rank {n} (host0, {1000 + n})" for n in range(4)]
    assert [track.sibling_order_rank for track in processes] == [0, 1, 2, 3]
    assert [track.process.pid for track in processes] == [1000, 1001, 1002, 1003]


def test_what_a_job_held(drawn):
    """A segment is registered with two communicators: it counts once, and has a lifetime below each."""
    second = COMM | {"comm": "00000000000000cd", "comm_id": 2}
    out = drawn(
        COMM | {"event": "communicator.pending", "ranks": 2},
        second | {"event": "communicator.pending", "ranks": 2},
        SEGMENT | {"event": "segment.alloc", "total": 2 * MIB},
        COMM | SEGMENT | {"event": "register.local", "us": 0.5, "ok": True},
        second | SEGMENT | {"event": "register.local", "us": 0.5, "ok": True},
        COMM | SEGMENT | {"event": "deregister.local", "us": 0.5, "ok": True},
        second | {"event": "communicator.abort", "registrations": 1},
        SEGMENT | {"event": "segment.free", "total": 0},
        {"event": "trace.end", "t_ns": 20_000},
    )
    assert out.counter("device 0 / registered bytes") == [2 * MIB, 0]
    assert out.counter("device 0 / segment bytes") == [2 * MIB, 0]
    first, other = (out.on(f"{key} / registrations") for key in ("ab #1", "cd #2"))
    assert [(one.name, one.start, one.end, one.arguments["end"]) for one in first + other] == [
        ("segment 1 (2 MiB)", 5_000, 7_000, "deregistered"),
        ("segment 1 (2 MiB)", 6_000, 8_000, "aborted"),
    ]
    names = [one.name for one in out.on("rank 0 (a, 10) / comm 00000000000000cd #2")]
    assert names == ["communicator.pending", "rank 0 of 2, aborted", "communicator.abort"]
    (log_slice,) = (one for one in out.on("/ log") if not one.instant)
    assert (log_slice.start, log_slice.end, log_slice.arguments["end"]) == (0, 19_000, "ended")


def test_the_clock_tells_wall_time(drawn):
    """Time 0 is the beginning of the job, and the trace says which wall time that was."""
    out = drawn()
    assert out.clocks == {6: 0, 1: 1_795_262_400_000_001_000}


def test_what_is_open_at_the_end_ends_with_the_log(drawn):
    """A process that was killed: what it held ends where its log does, and says so."""
    out = drawn(
        COMM | {"event": "communicator.pending", "ranks": 2},
        SEGMENT | {"event": "segment.alloc", "total": 1},
        COMM | SEGMENT | {"event": "register.local", "us": 1.0, "ok": True},
    )
    held = [one for one in out.nested if one.category in ("segment", "registration.local", "communicator")]
    assert {one.end for one in held} == {4_000}
    assert {one.arguments["end"] for one in held} == {
        "there at the end of the log",
        "held at the end of the log",
        "alive at the end of the log",
    }


def test_many_at_one_moment_do_not_pile_up(drawn):
    """Perfetto would draw instants of one time below each other, and drop some: they are moved by a nanosecond."""
    many = [
        COMM | {"event": "register.local", "ok": True, "t_ns": 5_000} | SEGMENT | {"segment": n} for n in range(600)
    ]
    out = drawn(COMM | {"event": "communicator.pending"}, *many)
    times = [one.start for one in out.instants if one.name == "register.local"]
    assert times == list(range(4_000, 4_600))


def test_findings_have_a_track(tmp_path):
    """Each is at its time, says its message, and one without a time stands at the end of its process."""
    found = [
        Finding("late", "warning", "nobody knows when", (), None, 0, None, None),
        Finding("window-order", "error", "rank 1 differs \u2014 \u00e4h", (1, 0), "ab", 0, 1_500, 3),
    ]
    out = _trace(_log(tmp_path / "logs", {"event": "hook.enable", "segments": 0, "bytes": 0}), found)
    shown = [(one.start, one.name, one.category, one.arguments) for one in out.on("findings")]
    facts = {"message": "rank 1 differs \u2014 \u00e4h", "severity": "error", "ranks": "1, 0", "comm": "ab", "seq": 3}
    assert shown == [
        (1_500, "window-order", "error", facts),
        (2_000, "late", "warning", {"message": "nobody knows when", "severity": "warning"}),
    ]


@pytest.mark.parametrize(
    "text", ["\u6f22\u5b57 \U0001f600", '"\\\n\x00\x1b[31m', "x" * 100_000, "\ud800 half", "'; DROP TABLE event"]
)
def test_any_text_fits(text, drawn):
    """What a log says of its host, its communicator or its file is data, of any length."""
    out = drawn(
        COMM | {"event": "communicator.pending", "comm": text.replace("\ud800", "")},
        COMM | SEGMENT | {"event": "register.local", "ok": True, "addr": text.replace("\ud800", "")},
        host=text,
        argv=[text],
    )
    (process,) = (track for track in out.tracks.values() if track.HasField("process"))
    assert process.process.process_name.startswith("rank 0 (" + text[:3].replace("\ud800", "?"))
    assert len(process.process.process_name) <= 4096


def test_numbers_out_of_range(drawn):
    """Sizes, durations and device numbers that cannot be are drawn somehow, and cost nothing else."""
    huge = 2**61 - 1
    out = drawn(
        COMM | {"event": "communicator.pending", "device": 2**31 - 1},
        *(SEGMENT | {"event": "segment.alloc", "segment": n, "size": huge, "device": 2**31 - 1} for n in range(5)),
        SEGMENT | {"event": "segment.alloc", "segment": 9, "size": None, "device": None},
        COMM | SEGMENT | {"event": "register.local", "ok": True, "us": 1e300},
        COMM | SEGMENT | {"event": "deregister.local", "ok": True, "us": -5, "t_ns": 500},
        {"event": "segment.free", "segment": 99, "device": 0, "addr": "no", "size": 1},
        {"event": "hook.conflict", "reason": "x", "t_ns": 2**60},
    )
    assert out.counter("segment bytes") == [huge, 2 * huge, 3 * huge, 4 * huge, float(5 * huge)]
    assert all(one.end >= one.start for one in out.written)


def test_two_processes_of_one_pid_are_two(tmp_path):
    """Containers on two hosts count their processes alike."""
    _log(tmp_path / "logs")
    _log(tmp_path / "logs", name="job.rank1.b.10.jsonl", rank=1, host="b")
    _log(tmp_path / "logs", name="job.rank-.b.11.jsonl", rank=None, host=None, pid=None)
    processes = [track.process for track in _trace(tmp_path / "logs").tracks.values() if track.HasField("process")]
    assert [one.process_name for one in processes] == ["rank 0 (a, 10)", "rank 1 (b, 10)", "no rank (host ?, ?)"]
    assert len({one.pid for one in processes}) == 3


def test_an_empty_job(drawn):
    """A log of one line is a process and the moment in which it began."""
    out = drawn()
    assert [(one.name, one.start, one.end) for one in out.nested] == [("log", 0, 0)]
    assert out.instants == []


def test_a_free_lane_is_used_again():
    """The first lane that is free takes the next interval, so that few are needed."""
    numbers = itertools.count()
    lanes = timeline.Lanes(lambda: next(numbers))
    assert [lanes.place(*interval) for interval in [(0, 5), (1, 9), (5, 6), (6, 7)]] == [0, 1, 0, 0]

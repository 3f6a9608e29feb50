"""Reading logs back: whole ones, torn ones, and what a killed process left in its ring."""

import gzip
import json
import os

import pytest

from tracehook.log import journal as logs
from tracehook.log import lines, reader

BEGIN = {"event": "trace.begin", "schema": "1.0", "t_ns": 1, "rank": 0, "pid": 10}
SEGMENT = {"segment": 5, "addr": 0x7F00, "size": 4096}


def _write(path, *events, tail=b""):
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    path.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    return path


def _alloc(seq):
    return {"event": "segment.alloc", "seq": seq, "t_ns": 1000 * seq}


def test_a_whole_log(core, tmp_path):
    """What the journal wrote is read back: a second consumer proves the format."""
    journal = logs.Journal(core, tmp_path / "a.jsonl", {"rank": 2, "pid": 10})
    core.push("segment.alloc", **SEGMENT)
    core.drop(3)
    journal.close(dict)
    log = reader.read_process(tmp_path / "a.jsonl")
    assert [event["event"] for event in log.events] == ["trace.begin", "segment.alloc", "log.dropped", "trace.end"]
    assert (log.rank, log.begin["pid"], log.dropped) == (2, 10, 3)
    assert (log.ended, log.torn, log.recovered, log.foreign_lines) == (True, False, 0, [])


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_log_cut_anywhere_in_its_last_line_is_read(tmp_path, cut):
    """Wherever the kill fell in a line, the line before it is the last one."""
    path = _write(tmp_path / "a.jsonl", BEGIN, _alloc(1), _alloc(2))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [event.get("seq") for event in reader.read_process(path).events] == [None, 1]


FOREIGN = (b"NCCL WARN something", b"[1, 2]", b'{"level": "info"}', b"\xff\xfe", b"null")


@pytest.mark.parametrize(
    ("line", "foreign"), [*((line, [3]) for line in FOREIGN), *((line, []) for line in (b"", b"  ", b"\r"))]
)
def test_a_foreign_line_is_noted_and_skipped(tmp_path, line, foreign):
    """A line that is none of ours, in the middle, costs nothing but itself; an empty one is no damage either."""
    log = reader.read_process(_write(tmp_path / "a.jsonl", BEGIN, _alloc(1), line, _alloc(2)))
    assert [event.get("seq") for event in log.events] == [None, 1, 2]
    assert log.foreign_lines == foreign


def test_what_the_ring_still_holds_is_recovered_once(core, tmp_path):
    """Events that were written but not yet marked when the process died are in both places, and are read once."""
    for _ in range(5):
        core.push("segment.alloc", **SEGMENT)
    path = _write(tmp_path / "a.jsonl", BEGIN, _alloc(1), _alloc(2), _alloc(3), tail=b'{"ev')
    (tmp_path / "a.ring").write_bytes(core.ring_file())
    log = reader.read_process(path)
    assert [event.get("seq") for event in log.events] == [None, 1, 2, 3, 4, 5]
    assert (log.recovered, log.ended, log.torn) == (2, False, True)
    assert log.events[-1]["addr"] == "0x7f00"


def test_a_recovered_event_looks_like_a_written_one(core, tmp_path):
    """Where an event was found makes no difference to its fields."""
    core.push("register.local", **SEGMENT, comm=1, comm_id=1, comm_seq=1, comm_rank=0, device=0, duration_ns=10)
    _write(tmp_path / "killed.jsonl", BEGIN)
    (tmp_path / "killed.ring").write_bytes(core.ring_file())
    logs.Journal(core, tmp_path / "lived.jsonl", {"rank": 0}).flush()
    killed, lived = (reader.read_process(tmp_path / f"{name}.jsonl") for name in ("killed", "lived"))
    assert killed.events[1] == lived.events[1]


def test_a_broken_ring_is_named_and_hides_no_line(core, tmp_path):
    """A ring that cannot be read is not passed over in silence; the log beside it is read."""
    path = _write(tmp_path / "a.jsonl", BEGIN, _alloc(1))
    (tmp_path / "a.ring").write_bytes(core.ring_file()[:5000])
    log = reader.read_process(path)
    assert [event.get("seq") for event in log.events] == [None, 1]
    assert log.complaint == f"{tmp_path}/a.ring: cut after 5000 bytes, expected {len(core.ring_file())}"
    left_out: list[str] = []
    assert [log.complaint] == [log.complaint for log in reader.read_directory(tmp_path, unreadable=left_out)]
    assert left_out == []
    with pytest.raises(lines.LogError, match=r"a\.ring: cut after 5000 bytes"):
        reader.read_directory(tmp_path)


def test_a_ring_without_its_log_is_a_process(core, tmp_path):
    """A process that was killed before its first line was whole is known by the name of its ring."""
    core.push("segment.alloc", **SEGMENT)
    (tmp_path / "job.rank3.host.77.2.ring").write_bytes(core.ring_file())
    (tmp_path / "job.rank1.host.78.ring").write_bytes(core.ring_file())
    (tmp_path / "job.rank1.host.78.jsonl").write_bytes(b'{"event":"trace.b')
    logs = reader.read_directory(tmp_path)
    assert [(log.rank, log.begin["pid"], log.recovered) for log in logs] == [(1, 78, 1), (3, 77, 1)]
    assert [event["event"] for event in logs[0].events] == ["segment.alloc"]


def test_a_packed_log_is_read(core, tmp_path):
    """With the ring beside it, as a plain one; but not beside the same log unpacked."""
    core.push("segment.alloc", **SEGMENT)
    plain = _write(tmp_path / "a.jsonl", BEGIN)
    (tmp_path / "a.ring").write_bytes(core.ring_file())
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    problems: list[str] = []
    assert len(reader.read_directory(tmp_path, unreadable=problems)) == 1
    assert problems == [f"{tmp_path}/a.jsonl.gz: stands beside it, unpacked"]
    plain.unlink()
    (log,) = reader.read_directory(tmp_path)
    assert [event["event"] for event in log.events] == ["trace.begin", "segment.alloc"]


def test_what_is_older_is_left_out(tmp_path):
    """Logs of an earlier run in the same directory, and files of other kinds, are not even named."""
    for name in ("old.jsonl", "old.ring", "no_log.jsonl"):
        os.utime(_write(tmp_path / name, BEGIN if name == "old.jsonl" else b"text"), (1000, 1000))
    (tmp_path / "notes.txt").write_text("text")
    new = _write(tmp_path / "new.jsonl", BEGIN | {"pid": 11})
    problems: list[str] = []
    assert [log.path for log in reader.read_directory(tmp_path, 2000.0, problems)] == [new]
    assert problems == []


@pytest.mark.parametrize("schema", ["2.0", "10.1", "", None, "one"])
def test_a_newer_schema_is_refused(tmp_path, schema):
    """A log of a later major version may mean other things by the same words."""
    path = _write(tmp_path / "a.jsonl", {**BEGIN, "schema": schema})
    with pytest.raises(lines.LogError, match=r"reads up to 1\.x"):
        reader.read_process(path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\n\n", b"hello\n", b'{"event":"segment.alloc","seq":1}\n', b'{"event":"trace.b'),
        b'NCCL WARN\n{"event":"trace.begin","schema":"1.0"}\n',
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path, content):
    """A log begins with a whole trace.begin."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(lines.LogError, match="not a tracehook log"):
        reader.read_process(path)


def test_a_directory_is_read_by_rank(tmp_path):
    """Ranks in order, whatever the files are called; a process without a rank comes last."""
    for name, rank, pid in (("a", 10, 1), ("b", 2, 5), ("c", None, 2), ("d", 2, 4)):
        _write(tmp_path / f"{name}.jsonl", {**BEGIN, "rank": rank, "pid": pid})
    (tmp_path / "notes.txt").write_text("nothing of ours")
    found = [(log.rank, log.begin["pid"]) for log in reader.read_directory(tmp_path)]
    assert found == [(2, 4), (2, 5), (10, 1), (None, 2)]

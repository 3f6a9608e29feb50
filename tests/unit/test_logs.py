"""The journal: what its lines look like, and its manners."""

import json
import os
import socket
from datetime import UTC, datetime, timedelta

import pytest

from tracehook.log import file_name
from tracehook.log import journal as logs
from tracehook.log import parts as file_parts
from tracehook.log.tables import REASONS

COMM = {"comm": 0xABC, "comm_id": 1, "comm_seq": 7, "comm_rank": 3, "device": 0}
SEGMENT = {"segment": 5, "addr": 0x7F00, "size": 4096}


@pytest.fixture
def journal(core, tmp_path):
    """Return a journal that writes to a file."""
    return logs.Journal(core, tmp_path / "a.jsonl", {"rank": 0, "pid": 1})


def _lines_of(journal):
    return [json.loads(line) for line in journal.path.read_bytes().splitlines()]


def test_the_first_line_names_the_schema(journal):
    """A log begins with its schema and what its process is."""
    (begin,) = _lines_of(journal)
    assert begin.pop("t_ns") > 0
    assert abs(datetime.fromisoformat(begin.pop("time")) - datetime.now(UTC)) < timedelta(minutes=1)
    assert begin == {"event": "trace.begin", "schema": logs.SCHEMA, "rank": 0, "pid": 1}


def test_a_registration_is_one_line(core, journal):
    """Addresses and keys are text, durations are microseconds, and the event's name comes first."""
    core.push("register.local", **COMM, **SEGMENT, duration_ns=2500)
    assert journal.flush() == 1
    line = journal.path.read_bytes().splitlines()[1]
    assert line.startswith(b'{"event":"register.local","seq":1,')
    texts = {"event": "register.local", "comm": "0000000000000abc", "addr": "0x7f00"}
    assert json.loads(line) == COMM | SEGMENT | texts | {"seq": 1, "t_ns": 1000, "us": 2.5, "thread": 4242, "ok": True}


def test_every_event_is_marked_once_it_is_written(core, journal):
    """The ring lets go of an event only after its line, and of every one, however many there are."""
    for _ in range(10_000):
        core.push("segment.alloc", **SEGMENT)
    assert journal.flush() == 10_000
    assert (core.drained, core.data) == (10_000, b"")
    assert [line["seq"] for line in _lines_of(journal)[1:]] == list(range(1, 10_001))
    assert journal.flush() == 0


def test_a_loss_is_reported_once_for_each_count(core, journal, capsys):
    """The log says each time how many events were lost since; stderr says it once."""
    core.drop(3)
    journal.flush()
    journal.flush()
    core.drop(2)
    journal.flush()
    assert [line["count"] for line in _lines_of(journal) if line["event"] == "log.dropped"] == [3, 2]
    assert capsys.readouterr().err == "tracehook: the ring was full, 3 events are not in the log\n"


def test_the_end_has_the_counts(core, journal):
    """A log that ends says so, after everything else, and the ring file is removed because nothing in it is missing."""
    core.push("segment.alloc", **SEGMENT)
    core.drop(4)
    journal.close(lambda: {"segments": 2})
    end = _lines_of(journal)[-1]
    assert (end["event"], end["dropped"], end["segments"]) == ("trace.end", 4, 2)
    assert [line["event"] for line in _lines_of(journal)][1] == "segment.alloc"
    assert core.ring_removed == 1


def test_a_forked_child_leaves_the_file_to_its_parent(core, journal):
    """After letting go, the child writes nothing more to the parent's log."""
    path = journal.path
    before = path.read_bytes()
    journal.abandon()
    journal.close(dict)
    assert (path.read_bytes(), core.ring_removed) == (before, 0)


def test_the_name_of_a_log(monkeypatch):
    """Job, rank, host and process make it unique on shared storage; odd characters of the job's id are replaced."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7")
    stem = file_name.file_stem("a/b c", {"RANK": "3"})
    assert stem == f"a_b_c.rank3.node-7.{os.getpid()}"
    assert file_name.file_stem("12", {}) == f"12.rank-.node-7.{os.getpid()}"
    assert file_name.file_stem(None, {}) == f"job.rank-.node-7.{os.getpid()}"
    assert len(file_name.file_stem("x" * 300, {})) < 200, "a file's name has at most 255 bytes"


def test_who_cannot_hear_of_a_birth_does_not_end_the_log(core, tmp_path, capsys):
    """What it loads then may be out of reach, after chroot or a change of the user: one line says so."""

    def hear():
        raise ImportError("No module named 'tomllib'")

    journal = logs.Journal(core, tmp_path / "a.jsonl", {}, at_birth=hear)
    for _ in range(2):
        core.push("communicator.pending", **COMM, ranks=8)
    assert journal.flush() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "tracehook: this process does not hear what other ranks ask: No module named 'tomllib'"


def test_a_program_may_replace_json_dumps(core, journal, monkeypatch):
    """With an indent of its own, for example, which would tear our lines apart."""
    monkeypatch.setattr(json, "dumps", lambda *_, **__: "{\n}")
    core.push("register.local", **COMM, **SEGMENT)
    assert journal.flush() == 1
    assert [line["event"] for line in _lines_of(journal)] == ["trace.begin", "register.local"]


def test_an_error_of_any_class_ends_the_log_and_not_its_thread(core, journal, capsys, monkeypatch):
    """An audit hook of the program may refuse to open files, and raise what it likes."""

    def refuse(*_):
        raise LookupError("not allowed here")

    monkeypatch.setattr(file_parts.Parts, "write", refuse)
    for _ in range(2):
        core.push("register.local", **COMM, **SEGMENT)
        assert journal.flush() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tracehook: no log from here on, {journal.path}: not allowed here; the job goes on"


def test_a_reason_is_said_once(core, journal, capsys):
    """Stderr has it once and the log each time, with its advice; one of a newer native side ends no log."""
    for _ in range(3):
        core.push("hook.unsupported", reason=1)
    core.push("hook.conflict", reason=8)
    journal.flush()
    err = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in err] == ["hook.unsupported", "hook.conflict"]
    assert journal.reasons == ["expandable_segments", "torch_hook"]
    assert [line["reason"] for line in _lines_of(journal)[1:]] == ["expandable_segments"] * 3 + ["torch_hook"]
    assert _lines_of(journal)[1]["advice"] == REASONS[1].advice
    core.push("hook.unsupported", reason=99)
    core.push("segment.alloc", **SEGMENT)
    assert journal.flush() == 2


def test_a_reason_said_before_is_not_repeated_by_its_event(core, journal, capsys):
    """The service says a reason at once, with details; its event comes through the ring later."""
    journal.say_reason(REASONS[5], "torch 9.9")
    core.push("hook.unsupported", reason=5)
    journal.flush()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tracehook: hook.unsupported: torch 9.9: {REASONS[5].advice}"


class _Aside:
    """Names the group of each communicator that it hears of."""

    def __init__(self):
        self.heard = []

    def hear(self, event, fields):
        if event == "communicator.ready":
            self.heard.append((event, fields["comm_id"]))

    def look(self, *_):
        if self.heard:
            yield "communicator.group", {"comm_id": self.heard.pop()[1], "group": "3"}


def test_what_is_said_aside_has_no_number(core, tmp_path, until):
    """The log's thread asks after each look at the ring what it found of communicators there; not at the end."""
    journal = logs.Journal(core, tmp_path / "a.jsonl", {}, aside=_Aside())
    core.push("segment.alloc", **SEGMENT)
    core.push("communicator.ready", **COMM)
    journal.start()
    until(lambda: len(_lines_of(journal)) == 4)
    journal.close(dict)
    ready, group = _lines_of(journal)[2:4]
    assert ready["event"] == "communicator.ready"
    assert group.pop("t_ns") > 0
    assert group == {"event": "communicator.group", "comm_id": 1, "group": "3"}
    later = logs.Journal(core, tmp_path / "b.jsonl", {}, aside=_Aside())
    core.push("communicator.ready", **COMM)
    later._finish = dict  # as close() does, but before the thread's first turn
    later.start()
    later.close(dict)
    assert [line["event"] for line in _lines_of(later)] == ["trace.begin", "communicator.ready", "trace.end"]


def test_an_object_of_the_program_may_end_on_the_thread_of_the_log_and_ask_for_the_status(core, tmp_path):
    """Python's garbage collector runs on any thread: what it calls there must not wait for what that thread writes."""

    class Asking:
        def hear(self, *_):
            log.flush()

        def look(self, *_):
            return ()

    log = logs.Journal(core, tmp_path / "a.jsonl", {"rank": 0, "pid": 1}, aside=Asking())
    core.push("register.local", **COMM, **SEGMENT, duration_ns=2500)
    log.start()
    log.flush()
    log.close(dict)
    assert [line["event"] for line in _lines_of(log)] == ["trace.begin", "register.local", "trace.end"]

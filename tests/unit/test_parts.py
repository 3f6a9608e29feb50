"""A log with a bound: what its parts keep of what was thrown away, and that they never take more than they may."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.parted import SMALL, Program, churn

from tracehook.log import parts as module
from tracehook.log.living import Living
from tracehook.log.parts import NoRoom, Parts
from tracehook.log.reader import read_process


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a program with a communicator."""
    made = Program(tmp_path)
    made.join(1)
    return made


def test_a_log_never_takes_more_than_its_limit(program):
    """However long the program runs, and it uses more than half of what it may."""
    for _ in range(200):
        churn(program, 200)
        assert program.bytes <= SMALL
    assert program.bytes > SMALL / 2


def test_what_lives_is_told_whatever_was_thrown_away(program):
    """Its birth and its registrations are in each part, as they were written; nothing of the dead before is."""
    kept = program.alloc()
    churn(program, 15_000)
    events = program.read()
    assert [e["event"] for e in events if e.get("segment") == kept] == ["segment.alloc", "register.local"]
    assert {e["event"] for e in events} >= {"trace.begin", "communicator.pending", "communicator.ready"}
    first = events[0]
    assert first["part"] > 1
    told = [e for e in events if e.get("seq", 1 << 60) < first["from_seq"]]
    assert len(told) <= 6
    numbers = [e["seq"] for e in events if e.get("seq", 0) >= first["from_seq"]]
    assert numbers == list(range(first["from_seq"], program.seq + 1)), "from there on nothing is missing, or twice"
    for file in program.folder.iterdir():
        assert kept in {event.get("segment") for event in read_process(file).events}


def test_every_life_in_what_is_left_is_whole(program):
    """At any moment of a random program nothing is freed that was not allocated, or deregistered without a register."""
    chance = random.Random(7)
    living: list[int] = []
    for _ in range(10):
        for _ in range(3000):
            if living and chance.random() < 0.5:
                program.free(living.pop(chance.randrange(len(living))))
            else:
                living.append(program.alloc())
        alive, held = set(), set()
        for event in program.read():
            match event["event"]:
                case "segment.alloc":
                    alive.add(event["segment"])
                case "register.local":
                    assert event["segment"] in alive
                    held.add(event["segment"])
                case "deregister.local":
                    held.remove(event["segment"])
                case "segment.free":
                    assert event["segment"] not in held
                    alive.remove(event["segment"])
        assert alive == held == set(living)
    assert program.parts.number > 5


def test_warnings_outlive_the_detail_around_them(program):
    """An operator who looks in the morning finds what happened at night."""
    program.say("agreement.mismatch", comm=f"{1:016x}", comm_id=1, entries=1)
    program.say("register.window", comm=f"{1:016x}", comm_id=1, pool_segment=1, ok=False, error=5)
    churn(program, 15_000)
    events = program.read()
    assert events[0]["part"] > 1
    names = [event["event"] for event in events]
    assert names.count("agreement.mismatch") == 1
    assert names.count("register.window") == 1


def test_lines_without_a_number_stand_once(program):
    """A line that nobody numbered is in the checkpoint of each part, and is read once."""
    program.say_aside("communicator.group", comm=f"{1:016x}", group="0", desc="tp", members=[0, 1])
    for name in ("1", "2"):
        program.say_aside("group.known", group=name, desc=None, members=[0, 1], backend="gloo")
    for number in range(5):
        churn(program, 3_000)
        program.say_aside("communicator.calls", comm=f"{number}", comm_id=number + 2)
    events = program.read()
    assert len([e for e in events if e["event"] == "communicator.group"]) == 1
    assert [e["group"] for e in events if e["event"] == "group.known"] == ["1", "2"]
    assert [e["comm"] for e in events if e["event"] == "communicator.calls"] == ["0", "1", "2", "3", "4"]


def test_a_communicator_that_ended_is_forgotten_with_its_registrations():
    """Nothing of it is kept, so a program that makes them for ever has a checkpoint that does not grow."""
    living = Living()
    for number in range(2, 2000):
        comm = {"comm": f"{number:x}", "comm_id": number}
        for event, more in (
            ("communicator.pending", {"ranks": 2}),
            ("communicator.group", {"group": "g"}),
            ("register.local", {"segment": 1, "ok": True}),
            ("register.window", {"pool_segment": 5, "ok": True}),
            ("placement.first_use", {"operation": "all_reduce"}),
            ("communicator.abort", {}),
        ):
            living.hear(event, {"seq": 1, **comm, **more}, b"x" * 100)
    assert living.nbytes == 0
    assert not list(living)


def test_both_registrations_of_a_segment_are_kept():
    """That for collectives and that for sends and receives; each goes with its own end."""
    living = Living()
    for event in ("register.local", "deregister.local"):
        for more in ({}, {"for_transfers": True}):
            fields = {"seq": 1, "comm_id": 1, "segment": 7, "ok": True, **more}
            living.hear(event, fields, f"{event} {more}".encode())
        assert len(list(living)) == (2 if event == "register.local" else 4)


def test_windows_that_are_gone_are_counted(program):
    """Ranks are compared window by window, so the audit must know how many a log no longer shows."""
    for number in range(10):
        program.say("register.window", comm=f"{1:016x}", comm_id=1, pool_segment=number, ok=True, ordinal=number)
        if number != 4:
            program.say("deregister.window", comm=f"{1:016x}", comm_id=1, pool_segment=number, ok=True)
    program.parts.rotate()
    for _ in range(10):
        churn(program, 3_000)
    first = program.read()[0]
    assert first["windows_gone"] == {"1": 9}


def test_first_uses_go_when_they_are_too_many(program):
    """They have no end of their own; the checkpoint says of which communicator they are not all there."""
    for number in range(60_000):
        program.say("placement.first_use", comm=f"{1:016x}", comm_id=1, operation="all_reduce", send_offset=number)
    assert program.bytes <= SMALL
    assert program.read()[0]["placements_gone"] == [1]


def test_more_living_things_than_the_limit_holds_end_the_log(program):
    """With one clear reason: a log that is no proof is worse than none."""

    def fill() -> None:
        for _ in range(100_000):
            program.alloc()

    with pytest.raises(NoRoom, match=r"SYMM_REGISTER_LOG_LIMIT is too small, set more: "):
        fill()
    assert program.bytes <= SMALL


@pytest.mark.parametrize("line", range(1, 90, 6))
def test_a_kill_in_the_middle_of_a_rotation_loses_nothing(tmp_path, line):
    """Whichever line of it was the last, the files tell what lives, and each event after that once."""
    program = Program(tmp_path)
    kept = program.alloc()
    churn(program, 6_000)
    left = line

    def trace(frame, event, _):
        nonlocal left
        left -= event == "line" and "/log/" in frame.f_code.co_filename
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    child = os.fork()
    if child == 0:
        sys.settrace(trace)
        program.parts.rotate()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    events = program.read()
    first = events[0].get("from_seq", 1)
    numbers = [e["seq"] for e in events if e.get("seq", 0) >= first]
    assert numbers == list(range(first, program.seq + 1))
    assert kept in {event.get("segment") for event in events}
    assert program.bytes <= SMALL


def test_a_full_disk_in_the_middle_of_a_rotation_leaves_whole_parts(program, monkeypatch):
    """The error goes to whoever writes; no half part is left."""
    churn(program, 12_000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Parts, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            program.parts.rotate()
    assert not [file.name for file in program.folder.iterdir() if file.name.endswith(".new")]
    assert program.read()


def test_a_part_goes_on_while_the_program_has_no_descriptor_left(program, monkeypatch):
    """Its files may be closed again, and the next part begins then; the bound holds meanwhile."""

    def scarce(path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(module, "new_file", scarce)
        churn(program, 1_500)
        assert len(list(program.folder.iterdir())) == 1
        assert program.bytes > SMALL / 8, "more than the share of a part"
        with pytest.raises(OSError, match="Too many"):
            churn(program, 15_000)
        assert program.bytes <= SMALL
    numbers = [event["seq"] for event in program.read() if "seq" in event]
    assert numbers == list(range(1, len(numbers) + 1))
    program.parts.rotate()
    assert program.bytes <= SMALL
    assert program.read()[0]["part"] == 2


def test_without_a_limit_there_is_one_part(tmp_path):
    """As large as it gets."""
    program = Program(tmp_path, limit=None)
    churn(program, 20_000)
    program.parts.rotate()
    assert len(list(tmp_path.iterdir())) == 1
    assert program.bytes > SMALL


def test_a_log_goes_on_where_the_program_has_closed_its_descriptor(tmp_path):
    """As a daemon closes all that it did not open: a file of the program may get the number, and no line of ours."""
    log = Parts(tmp_path / "a.jsonl", None)
    log.begin({"event": "trace.begin"})
    os.close(log.descriptor)
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    assert mine == log.descriptor
    log.write(b'{"event":"segment.alloc"}\n')
    os.close(mine)
    log.write(b'{"event":"segment.free"}\n')
    assert (tmp_path / "mine").read_bytes() == b""
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["trace.begin", "segment.alloc", "segment.free"]


@pytest.mark.parametrize("is_link", [True, False])
def test_a_log_that_was_replaced_meanwhile_is_given_up(tmp_path, is_link):
    """Its descriptor was closed, and another file has its name: no line goes there."""
    log = Parts(tmp_path / "a.jsonl", None)
    log.begin({"event": "trace.begin"})
    os.close(log.descriptor)
    (tmp_path / "a.jsonl").rename(tmp_path / "moved")
    other = tmp_path / "other"
    other.write_bytes(b"")
    (tmp_path / "a.jsonl").symlink_to(other) if is_link else other.rename(tmp_path / "a.jsonl")
    with pytest.raises(OSError):  # noqa: PT011  # a link is refused by the system, in its words
        log.write(b"line\n")
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_a_log_takes_no_descriptor_of_the_standard_streams(tmp_path):
    """A program may start with a closed stderr: what C code then writes there must not be in the log."""
    script = (
        "import os; from tracehook.log.file_name import new_file; os.closerange(0, 3); os._exit(new_file({path!r}))"
    )
    line = [sys.executable, "-c", script.format(path=str(tmp_path / "a.jsonl"))]
    assert subprocess.run(line, timeout=60, check=False).returncode >= 3

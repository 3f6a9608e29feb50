"""Where a process is in its program: its stacks, which a native thread writes, and the line that the audit quotes."""

import random
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import run

from tracehook.audit.finding import ProgramPlace
from tracehook.audit.stacks import ProgramLine, program_line, told_places
from tracehook.log.file_name import stacks_of, stem_of

MAIN, OTHER = 0x7F102A1C4840, 0x7E0F5F4FE6C0
LIBRARIES = (
    "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", "/usr/lib/python3/dist-packages/numpy/core.py",
    "/usr/lib/python3.12/threading.py", "/opt/pytorch/torch/distributed/c10d.py",
    "/src/tracehook/symmetric_memory/scope.py", "<frozen importlib._bootstrap>", "<string>",
)  # fmt: skip


def frame(file: str, line: int, function: str) -> str:
    """Return a line of a stack, as faulthandler writes it."""
    return f'  File "{file}", line {line} in {function}\n'


def thread(number: int, *frames: str, head: str = "Thread") -> str:
    """Return the stack of a thread."""
    return f"{head} 0x{number:016x} (most recent call first):\n{''.join(frames) or '  <no Python frame>'}\n\n"


def stacks(t_ns: int, *threads: str) -> str:
    """Return what a process writes at one moment."""
    return f"tracehook stacks t_ns={t_ns} main=0x{MAIN:016x}\n{''.join(threads)}\n"


def line_in(folder: Path, text: str, since_ns: int = 0) -> str:
    """Return the line of the program that is read in these stacks."""
    file = folder / "job.rank0.host.1.stacks"
    file.write_text(text)
    found = program_line(file, since_ns)
    return "" if found is None else f"{found.file}:{found.line} {found.function}"


STEP, MADE = frame("/job/train.py", 41, "step"), frame("/job/train.py", 90, "<module>")
LOADER = frame("/job/data.py", 7, "load")


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_innermost_line_of_the_program_is_that_of_no_library(tmp_path: Path, library: str) -> None:
    """Whatever the program called stands above it: torch, the standard library, tracehook, an importer."""
    text = stacks(5, thread(MAIN, frame(library, 3, "wait"), STEP, MADE))
    assert line_in(tmp_path, text) == "/job/train.py:41 step"


def test_the_main_thread_comes_first_wherever_it_stands(tmp_path: Path) -> None:
    """Of another one a line is quoted only if it is in no line of the program. Python 3.14 writes a name, too."""
    other = thread(OTHER, LOADER)
    assert line_in(tmp_path, stacks(5, other, thread(MAIN, STEP, MADE))) == "/job/train.py:41 step"
    assert line_in(tmp_path, stacks(5, thread(MAIN, STEP, MADE, head="Current thread"), other)).endswith("step")
    assert line_in(tmp_path, stacks(5, thread(MAIN, frame(LIBRARIES[0], 1, "f")), other)) == "/job/data.py:7 load"
    assert line_in(tmp_path, stacks(5, thread(MAIN))) == ""
    text = stacks(5, thread(MAIN, STEP)).replace(" (most", " [python3] (most")
    assert line_in(tmp_path, text) == "/job/train.py:41 step"


LOOP = tuple(
    frame(f"/venv/lib/python3.11/{file}", 1, function)
    for file, function in (
        ("threading.py", "wait"),
        ("site-packages/torch/utils/data/dataloader.py", "_try_get_data"),
        ("site-packages/torch/utils/data/dataloader.py", "__next__"),
    )
)
WORKERS = "child 7 {} pt_data_worker\nchild 8 {} pt_data_worker\nchild 9 T python3\n"


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ("SS", "its data loader (workers pid 7, 8 run)"),
        ("TS", "its data loader (worker pid 7 is stopped)"),
        ("TZ", "its data loader (worker pid 8 is gone; worker pid 7 is stopped)"),
    ],
)
def test_a_main_thread_inside_a_data_loader_waits_for_its_workers(tmp_path: Path, states: str, told: str) -> None:
    """With those that do not run; other children do not matter."""
    file = tmp_path / "job.rank0.host.1.stacks"
    head, _, threads = stacks(5, thread(OTHER, LOADER), thread(MAIN, *LOOP, STEP)).partition("\n")
    file.write_text(f"{head}\n{WORKERS.format(*states)}{threads}")
    found = program_line(file)
    assert found == ProgramLine("step", "/job/train.py", 41, told)


def test_a_main_thread_that_reads_the_data_itself_waits_for_no_worker(tmp_path: Path) -> None:
    """Without workers the data set runs inside the data loader: its line is that of the program."""
    file = tmp_path / "job.rank0.host.1.stacks"
    file.write_text(stacks(5, thread(MAIN, LOADER, *LOOP[1:], STEP)))
    assert program_line(file) == ProgramLine("load", "/job/data.py", 7, caller="train.py:41 in step")
    file.write_text(stacks(5, thread(MAIN, *LOOP[2:], STEP)))
    assert program_line(file) == ProgramLine("step", "/job/train.py", 41)


def test_the_newest_stacks_count_unless_they_are_too_old(tmp_path: Path) -> None:
    """A process may have written some long before it hung."""
    text = stacks(5, thread(MAIN, LOADER)) + stacks(9, thread(MAIN, STEP))
    assert line_in(tmp_path, text, since_ns=9) == "/job/train.py:41 step"
    assert line_in(tmp_path, text, since_ns=10) == ""
    assert program_line(tmp_path / "none.stacks") is None


def test_damaged_stacks_raise_nothing(tmp_path: Path) -> None:
    """Cut anywhere, with bytes changed anywhere, or of something else."""
    chosen = random.Random(1)
    whole = (stacks(5, thread(OTHER, LOADER), thread(MAIN, STEP)) + stacks(9, thread(MAIN, STEP))).encode()
    file = tmp_path / "stacks"
    for _ in range(500):
        data = bytearray(whole[: chosen.randrange(len(whole) + 1)])
        for _ in range(chosen.randrange(4)):
            if data:
                data[chosen.randrange(len(data))] = chosen.randrange(256)
        file.write_bytes(data)
        found = program_line(file)
        assert found is None or isinstance(found.line, int)
    assert line_in(tmp_path, "no stacks\n" * 100) == ""


def test_only_the_end_of_a_huge_file_is_read(tmp_path: Path) -> None:
    """Whoever wrote it: an audit of many ranks reads two MiB of each at most."""
    text = stacks(5, thread(MAIN, LOADER) * 60_000) + stacks(9, thread(MAIN, STEP))
    assert len(text) > 4 << 20
    assert line_in(tmp_path, text) == "/job/train.py:41 step"


def test_ranks_at_one_line_are_told_together_and_not_more_than_four_lines() -> None:
    """The order stays: those to blame come first."""
    at = {rank: ProgramPlace(rank, "/job/train.py", 57 if rank < 4 else 41, "main") for rank in range(8)}
    said = told_places([at[7], at[0], at[1], at[2]])
    assert said == ["rank 7 is at train.py:41 in main", "ranks 0-2 are at train.py:57 in main"]
    waits = [ProgramPlace(rank, "/job/train.py", 41, "main", "its data loader") for rank in (2, 5)]
    assert told_places(waits) == ["ranks 2, 5 wait for its data loader at train.py:41 in main"]
    many = [ProgramPlace(rank, "train.py", rank, "main") for rank in range(9)]
    assert len(told_places(many)) == 4


def test_the_file_of_stacks_is_named_as_the_log(tmp_path: Path) -> None:
    """Also that of a later part of the log, so no other process takes the name."""
    for log in ("job.rank0.host.7.jsonl", "job.rank0.host.7.part3.jsonl.zst", "job.rank0.host.7.ring"):
        assert stacks_of(tmp_path / log) == tmp_path / "job.rank0.host.7.stacks"
    assert stem_of("job.rank0.host.7.stacks") == "job.rank0.host.7"


# --- a process that writes them ---

PROCESS = """
import ctypes, os, pathlib, signal, sys, threading, time
from tracehook import _core
from tracehook.hook import stacks
from tracehook.log.file import LogFile
from tracehook.log.stacks import ask

log = pathlib.Path(sys.argv[1]) / "job.rank0.host.7.jsonl"
written = log.with_suffix(".stacks")


def signals():
    return [line for line in open("/proc/self/status") if line.startswith(("SigCgt", "SigIgn"))]


def begin(silence=stacks.SILENCE):
    _core.make_process(str(log.with_suffix(".ring")), 64)
    stacks.begin(_core, log, silence)


def asked():
    return ask([LogFile(log, [], {"event": "trace.begin"})])


def held():
    ctypes.PyDLL(None).system(f"timeout 40 sh -c 'until [ -s {written} ]; do sleep 0.1; done'".encode())


"""


@pytest.fixture
def play(tmp_path: Path) -> Callable[[str], str]:
    """Run a process that has stacks, and return what it printed."""

    def run_with_stacks(body: str) -> str:
        program = tmp_path / "program.py"
        program.write_text(PROCESS + textwrap.dedent(body))
        finished = run([sys.executable, program, str(tmp_path)], timeout=60)
        assert finished.status == 0, finished.output
        return finished.out

    return run_with_stacks


def found_in(folder: Path, rank: int = 0, pid: int = 7) -> ProgramLine:
    """Return the line of the program in what a process wrote."""
    found = program_line(folder / f"job.rank{rank}.host.{pid}.stacks")
    assert found is not None
    return found


def test_code_in_c_that_holds_the_gil_hides_no_stack(tmp_path, play):
    """The call holds it until the stacks are there."""
    play("""
        begin()
        _core.ask_stacks()
        held()
        _core.end_stacks()
        assert written.read_text().count("tracehook stacks ") == 1
    """)
    assert found_in(tmp_path).function == "held"


def test_nobody_need_ask_if_nobody_gets_the_gil(play):
    """Of a host where nobody asks; that the log's thread alone stands still, as with a dead file server, is no hang."""
    play("""
        begin(silence=0.6)  # no thread looks at this ring
        time.sleep(2)
        assert not written.exists()
        for _ in range(20):
            _core.peek(1)
            time.sleep(0.1)
        held()
        time.sleep(1.5)
        assert written.read_text().count("tracehook stacks ") == 1
        _core.end_stacks()
    """)


def test_no_signal_of_the_program_is_taken(play):
    """Neither SIGUSR2, for which the program may have a handler, nor any other: asking sends none."""
    out = play("""
        signal.signal(signal.SIGUSR2, lambda *_: print("the program's own"))
        threading.Thread(target=time.time).start()  # the first thread takes one for the C library
        before = signals()
        begin()
        assert signals() == before
        assert asked()
        assert signals() == before
        os.kill(os.getpid(), signal.SIGUSR2)
        _core.end_stacks()
    """)
    assert out == "the program's own\n"


def test_a_forked_child_writes_its_own_stacks(tmp_path, play):
    """It begins a log of its own, and its parent's stacks stay what they are."""
    play("""
        begin()
        child = os.fork()
        if child == 0:
            log = log.with_name("job.rank1.host.8.jsonl")
            written = log.with_suffix(".stacks")
            begin()
            os._exit(0 if asked() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not written.exists()
        assert asked()
        _core.end_stacks()
    """)
    assert found_in(tmp_path, rank=1, pid=8) == found_in(tmp_path)


def test_the_file_has_a_bound_and_keeps_the_newest_stacks(tmp_path, play):
    """One MiB: what is older goes."""
    file = tmp_path / "job.rank0.host.7.stacks"
    file.write_text(stacks(5, thread(MAIN, LOADER) * 12_000)[: 1 << 20])
    play("begin(); assert asked(); assert asked(); _core.end_stacks()")
    assert file.stat().st_size < 100_000
    assert len(re.findall("^tracehook stacks ", file.read_text(), re.MULTILINE)) == 2
    assert found_in(tmp_path).function == "asked"

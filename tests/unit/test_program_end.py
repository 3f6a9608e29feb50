"""What the log says of how Python ended."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tracehook.log.file import open_log

BEGIN = """
import atexit, os, sys, threading
from pathlib import Path
from tracehook import _core
from tracehook.hook import program_end
from tracehook.log.journal import Journal

log = Path("a.jsonl")
_core.make_process("a.ring", 64)
journal = Journal(_core, log, {})
journal.start()
program_end.follow(_core, journal)
os.register_at_fork(after_in_child=program_end.forget)
atexit.register(lambda: journal.close(program_end.fields))
"""


class Ended:
    """A program that ran to its end: exit status, stderr, and the events of its log and its ring."""

    def __init__(self, directory: Path, program: str, *options: str) -> None:
        script = directory / "program.py"
        script.write_text(BEGIN + textwrap.dedent(program))
        for name in ("a.jsonl", "a.ring"):
            (directory / name).unlink(missing_ok=True)
        line = [sys.executable, *options, str(script)]
        done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.events = [json.loads(text) for text in (directory / "a.jsonl").read_text().splitlines()]
        if (directory / "a.ring").exists():
            # A killed process may have written a line whose event the ring still has.
            logged = {event.get("seq") for event in self.events}
            left = open_log([directory / "a.jsonl"], directory).events_left()
            self.events += [event for event in left if event.get("seq") not in logged]

    def told(self, event: str = "trace.end") -> dict[str, Any]:
        """Return what the one event of that name says of the end."""
        (found,) = (one for one in self.events if one["event"] == event)
        return {key: found[key] for key in ("how", "exception", "message", "status", "thread_name") if key in found}

    def raised_at(self, event: str) -> str | None:
        """Return where the exception of the one event of that name was raised, without the folder."""
        (found,) = (one for one in self.events if one["event"] == event)
        return str(found["raised_at"]).rpartition("/")[2] if "raised_at" in found else None


@pytest.fixture
def end(tmp_path):
    """Run a program to its end."""
    return lambda program, *options: Ended(tmp_path, program, *options)


BOOM = {"how": "exception", "exception": "ValueError", "message": "boom", "status": 1}


def test_an_exception_is_named(end):
    """Type and first line stand in the last line, and before it in an event of their own; the traceback is as ever."""
    ended = end(r'raise ValueError("\nboom\nand more")')
    assert ended.told() == BOOM
    assert ended.told("python.exception") == {"exception": "ValueError", "message": "boom"}
    assert ended.status == 1
    assert ended.err.count("Traceback") == 1
    assert "program_end.py" not in ended.err


def test_of_an_error_of_nccl_its_own_words_come_first(end):
    """They name the ranks; torch's first line only says where it called NCCL."""
    ended = end("""
        raise RuntimeError("NCCL error in: x.cpp:93, invalid usage\\nncclInvalidUsage: wrong.\\nLast error:\\n"
                           "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000")
    """)
    said = (
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000 (NCCL error in: x.cpp:93, invalid usage)"
    )
    assert ended.told()["message"] == said


def test_an_exception_that_was_raised_from_another_one_tells_that_too(end):
    """Torch's pipelines say ``[Stage 2] failed to run forward``, and what failed only in the cause."""
    ended = end("""
        def forward(): raise KeyError("no such token")
        def step():
            try: forward()
            except KeyError as problem: raise RuntimeError("\\n  [Stage 2] failed to run forward:\\nargs") from problem
        step()
    """)
    told = ended.told()
    assert told["exception"] == "RuntimeError"
    assert told["message"] == "[Stage 2] failed to run forward: (from KeyError: 'no such token')"
    line = len(BEGIN.splitlines()) + 2
    assert ended.raised_at("trace.end") == f"program.py:{line} in forward"


@pytest.mark.parametrize("is_circle", [False, True])
def test_a_long_text_is_cut_and_a_circle_of_causes_ends(end, is_circle):
    """The exceptions of a program may be anything; what is cut ends with dots."""
    ended = end(f"""
        one, two, three = ValueError("a" * 1000), KeyError("b" * 1000), KeyError("c" * 1000)
        one.__cause__, two.__cause__, three.__cause__ = two, three, one if {is_circle} else None
        raise one
    """)
    told = ended.told()["message"]
    assert told.startswith("aaa")
    assert "aaa... (from KeyError: '" in told
    assert told.endswith("...)")
    assert len(told) <= 300


def test_the_line_of_the_program_is_told(end):
    """Of the whole program, of a thread, and of one that the program caught; not a line of a library that raised."""
    program = "import json\ndef load(text): return json.loads(text)\n"
    line = len(BEGIN.splitlines()) + 2  # of `load`
    ended = end(program + "load('{')")
    assert ended.raised_at("python.exception") == f"program.py:{line} in load"
    assert ended.raised_at("trace.end") == f"program.py:{line} in load"
    ended = end(program + "thread = threading.Thread(target=load, args='{'); thread.start(); thread.join()")
    assert ended.raised_at("thread.exception") == f"program.py:{line} in load"
    ended = end(program + "try: load('{')\nexcept ValueError: sys.exit(3)")
    assert ended.raised_at("trace.end") == f"program.py:{line} in load"
    assert end("sys.exit(3)").raised_at("trace.end") is None


def test_an_exception_is_told_of_a_process_that_is_killed_before_its_log_has_it(end):
    """As a launcher does with the ranks that are left, a tenth of a second after one failed."""
    ended = end("""
        import signal
        journal.stop_thread()  # it comes too late
        sys.excepthook = lambda *raised, ours=sys.excepthook: (ours(*raised), os.kill(os.getpid(), signal.SIGKILL))
        raise ValueError("boom")
    """)
    assert ended.status == -signal.SIGKILL
    assert ended.told("python.exception") == {"exception": "ValueError", "message": "boom"}


@pytest.mark.parametrize("calls_ours", [True, False])
def test_a_hook_that_the_program_sets_later_runs(end, calls_ours):
    """It runs once, and the last line names the exception also if it does not call ours."""
    ended = end(f"""
        before = sys.excepthook
        def hook(*raised):
            print("the program's own")
            if {calls_ours}: before(*raised)
        sys.excepthook = hook
        raise ValueError("boom")
    """)
    assert ended.told() == BOOM
    assert ended.out == "the program's own\n"
    assert ("Traceback" in ended.err) == calls_ours


def test_a_hook_that_was_there_before_runs(end):
    """Of the program or of torch: ours comes before it and does not take its place."""
    ended = end("""
        program_end._Followed.has_hooks = False
        sys.excepthook = lambda *_: print("theirs")
        program_end.follow(_core, journal)
        raise ValueError("boom")
    """)
    assert ended.told() == BOOM
    assert ended.out == "theirs\n"


def test_an_exception_is_in_the_log_while_the_process_hangs_at_its_end(end):
    """A process that is killed in its exit handlers has told by what its program ended."""
    ended = end("""
        import signal, time
        def hang():
            while b"python.exception" not in log.read_bytes(): time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        atexit.register(hang)
        raise ValueError("boom")
    """)
    assert ended.status == -signal.SIGKILL
    assert ended.told("python.exception") == {"exception": "ValueError", "message": "boom"}


def test_a_printed_exception_ends_nothing(end):
    """Who calls the hook to print an exception that was caught goes on, and ends as it does."""
    ended = end("""
        try: raise ValueError("boom")
        except ValueError: sys.excepthook(*sys.exc_info())
    """)
    assert ended.told() == {"how": "exit"}
    assert "python.exception" not in {event["event"] for event in ended.events}


def test_ctrl_c_is_an_exception(end):
    """It is named like any other; the process ends by the signal as it would without us."""
    ended = end("""
        import signal
        # In a job in the background SIGINT is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _core.push("hook.enable", segments=0, bytes=0)
        journal.flush()  # its thread imports nothing any more: Python forgets the signal at an exec() of text
        signal.raise_signal(signal.SIGINT)
    """)
    assert ended.told() == {"how": "exception", "exception": "KeyboardInterrupt", "message": "", "status": 130}
    assert ended.status == -signal.SIGINT


@pytest.mark.parametrize(
    ("argument", "status"), [("", 0), ("None", 0), ("0", 0), ("3", 3), ("-1", 255), ("'no such file'", 1)]
)
def test_the_status_of_sys_exit_is_told(end, argument, status):
    """Whatever the program passes, it is what the parent sees."""
    ended = end(f"sys.exit({argument})")
    assert ended.told() == {"how": "exit", "status": status}
    assert ended.status == status


def test_a_status_that_nobody_said_is_not_told(end):
    """Neither that of a plain end, nor one of another thread."""
    ended = end("thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()")
    assert ended.told() == {"how": "exit"}
    assert ended.status == 0


def test_an_exception_that_the_program_caught_before_it_failed_is_told(end):
    """As torch.multiprocessing does with the exceptions of its workers."""
    program = """
        try: raise ValueError("boom")
        except ValueError: sys.exit({})
    """
    assert end(program.format(7)).told() == BOOM | {"how": "exit", "status": 7}
    passed_on = """
        try:
            try: raise ValueError("boom")
            except ValueError: sys.exit(1)
        except SystemExit as end: code = end.code
        sys.exit(code)
    """
    assert end(passed_on).told() == BOOM | {"how": "exit"}
    assert end(program.format(0)).told() == {"how": "exit", "status": 0}


@pytest.mark.parametrize(("argument", "status"), [("0", 0), ("4", 4), ("-1", 255)])
def test_os_exit_leaves_its_status_in_the_ring(end, argument, status):
    """There is no last line then, and the ring stays."""
    ended = end(f"os._exit({argument})")
    assert ended.told("python.exit") == {"status": status}
    assert ended.status == status
    assert "trace.end" not in {event["event"] for event in ended.events}


@pytest.mark.parametrize("calls_ours", [True, False])
def test_an_exception_is_told_once_where_a_hook_of_the_program_calls_os_exit(end, calls_ours):
    """As programs do that want no hanging end; also if it does not call our hook."""
    ended = end(f"""
        before = sys.excepthook
        def hook(*raised):
            if {calls_ours}: before(*raised)
            os._exit(1)
        sys.excepthook = hook
        raise ValueError("boom")
    """)
    assert ended.told("python.exception") == {"exception": "ValueError", "message": "boom"}
    assert ended.told("python.exit") == {"status": 1}


@pytest.mark.parametrize("call", ["execv(sys.executable,", "execvpe('python3',", "execlp('true',"])
def test_a_program_that_another_one_replaces_says_so_in_the_ring(end, call):
    """But not a program that was not there."""
    more = {"execv(sys.executable,": '["python", "-c", ""]', "execvpe('python3',": '["python", "-c", ""], os.environ'}
    ended = end(f"""
        try: os.execvp("no such program", ["no"])
        except FileNotFoundError: pass
        os.{call} {more.get(call, '"true"')})
    """)
    assert (ended.told("python.exit"), ended.status) == ({"status": 0}, 0)


def test_a_forked_child_says_nothing_in_its_parents_log(end):
    """Neither its os._exit, nor its exceptions, nor the end of its threads."""
    ended = end("""
        def fail(): raise KeyError("of the child")
        if not (child := os.fork()):
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert ended.out == "5\n"
    assert [event["event"] for event in ended.events] == ["trace.begin", "trace.end"]


def test_an_exception_of_another_thread_is_told_and_ends_nothing(end):
    """With the thread's name; the traceback is printed as ever."""
    ended = end("""
        def fail(): raise KeyError("gone")
        thread = threading.Thread(target=fail, name="loader")
        thread.start()
        thread.join()
    """)
    assert ended.told("thread.exception") == {"exception": "KeyError", "message": "'gone'", "thread_name": "loader"}
    assert ended.told() == {"how": "exit"}
    assert "Exception in thread loader" in ended.err


@pytest.mark.parametrize("text", ["'x' * 10_000", r"'\udcff' * 400", "1 / 0", "(_ for _ in ()).throw(OSError)"])
def test_any_text_of_an_exception_can_be_told(end, text):
    """One that is long, that is none in UTF-8, or that cannot be made."""
    ended = end(f"""
        class Odd(Exception):
            def __str__(self): return {text}
        raise Odd
    """)
    told = ended.told()
    assert (told["how"], told["exception"]) == ("exception", "Odd")
    assert len(told["message"]) in (0, 300)


def test_an_interactive_line_ends_nothing(end):
    """The interpreter goes on after an exception there."""
    ended = end('raise ValueError("boom")', "-i")  # and reads an empty stdin
    assert ended.told()["how"] == "exit"


WRAPPED = ("os._exit", "os.execv", "os.execve", "sys.exit", "sys.excepthook")


@pytest.mark.parametrize(
    "statement",
    [
        *(f"import pickle; assert pickle.loads(pickle.dumps({name})) is {name}" for name in WRAPPED),
        "assert os.execve in os.supports_fd",
    ],
)
def test_what_is_wrapped_is_taken_for_what_it_was(end, statement):
    """By whoever reads its pickle, such as a pool of processes, and by the sets of functions that Python keeps."""
    ended = end(statement)
    assert (ended.status, ended.err) == (0, "")


def test_the_standard_hooks_count_as_such(end):
    """Consoles ask for that before they print an exception themselves; and what is set back tells still."""
    ended = end("""
        import code
        class Console(code.InteractiveInterpreter):
            def write(self, text): print(text.splitlines()[-1])
        Console().runsource("1 / 0")
        assert threading.excepthook is threading.__excepthook__
        sys.excepthook = print
        sys.excepthook = sys.__excepthook__
        raise ValueError("boom")
    """)
    assert ended.told("python.exception") == {"exception": "ValueError", "message": "boom"}
    assert ended.out == "ZeroDivisionError: division by zero\n"
    assert ended.err.count("Traceback") == 1

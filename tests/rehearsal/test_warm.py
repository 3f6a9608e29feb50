"""A warm start: a program that was forked from a server does what the interpreter would have made it do."""

import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm
from support.audits import Audit
from support.processes import GRACE, SCRIPTS, Finished, environment, run
from support.rehearsal import EXAMPLES, rehearse

from tracehook.rehearsal.warm import Warm

SCRIPT = """
import atexit, os, sys, threading, time
atexit.register(print, "at exit")
main = sys.modules["__main__"]
print(__name__, __file__, main.__spec__, sys.argv, sys.path[0], sys.orig_argv[1:], os.getcwd(), os.umask(0o22))
print(sys.stdin.read(), sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.write_through)
print(sorted(name for name in os.environ if name.startswith("TRACEHOOK_TEST")), "torch" in sys.modules, dir())
threading.Thread(target=lambda: (threading.main_thread().join(), print("from a thread"))).start()
def fail():
    raise ValueError("on purpose")
"""
ENDS = {
    "end": "",
    "exception": "fail()",
    "chained": "try:\n    fail()\nexcept ValueError as first:\n    raise KeyError('another') from first",
    "status": "sys.exit(7)",
    "text": "sys.exit('a text')",
    "beyond": "sys.exit(256 + 3)",
    "at once": "sys.stdout.flush(); os._exit(4)",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
    "terminated": "sys.stdout.flush(); os.kill(os.getpid(), 15)",
    "syntax": "exec('1 +')",
}


@pytest.fixture(scope="module")
def server() -> Warm:
    """Return the server that all rehearsals of this process use."""
    return warm.server(environment())


@pytest.fixture
def both(server: Warm, tmp_path: Path) -> Callable[..., tuple[Finished, Finished]]:
    """Run the same with the interpreter and with what stands in for it."""

    def act(*arguments: str, **env: str) -> tuple[Finished, Finished]:
        changes = warm.environment(environment()) | env
        cold, warmly = (run([python, *arguments], changes, cwd=tmp_path) for python in (sys.executable, server.python))
        return cold, warmly

    return act


def outcome(finished: Finished) -> tuple[int, list[str], str, int]:
    """Return what must be equal. The order of lines from several threads need not be."""
    return finished.status, sorted(finished.out.splitlines()), finished.err, finished.orphans


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_with_the_interpreter(
    both: Callable[..., tuple[Finished, Finished]], tmp_path: Path, end: str
) -> None:
    """Its names, streams, arguments, folder, traceback and exit status are those of ``python SCRIPT``."""
    (tmp_path / "program.py").write_text(SCRIPT + ENDS[end])
    cold, warmly = both("program.py", "one", "-m", TRACEHOOK_TEST_ONE="1")
    assert outcome(warmly) == outcome(cold)
    assert "program.py" in warmly.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import sys; print(sys.argv, sys.path[0], sys.orig_argv[1:], __name__); sys.exit(5)", "-x"),
        ("-m", "json.tool", "--help"),
        ("-m", "no_such_module"),
        ("-u", "-c", "import sys; print(sys.stdout.write_through, sys.argv); print('no end', end='')"),
        ("-c", "import fcntl, os; os.close(2); print(os.listdir('.'))"),
        ("no_such_script.py",),
        ("-X", "utf8", "-c", "import sys; print(sys.flags.utf8_mode)"),
        ("--version",),
    ],
    ids=lambda arguments: " ".join(arguments)[:16],
)
def test_other_programs(both: Callable[..., tuple[Finished, Finished]], arguments: tuple[str, ...]) -> None:
    """``-c``, ``-m`` and ``-u`` are done here, and all else by the interpreter."""
    cold, warmly = both(*arguments)
    assert outcome(warmly) == outcome(cold)


def test_settings_of_the_child(server: Warm) -> None:
    """The emulation takes its settings from the environment of the program, not of the server; addresses differ."""
    code = "import torch; print(torch.cuda.device_count(), torch.ones(1, device='cuda').data_ptr())"
    told = []
    for number in ("2", "5", "3"):
        env = warm.environment(environment()) | {"TRACEHOOK_EMU_DEVICES": number}
        told.append(run([server.python, "-c", code], env).out.split())
    assert [count for count, _ in told] == ["2", "5", "3"]
    assert len({address for _, address in told}) > 1, "by chance two are equal, and not all"


def test_torch_is_loaded_when_it_is_imported(server: Warm, tmp_path: Path) -> None:
    """What `import torch` does at its end comes where the program imports torch, or a part of it."""
    code = (
        "import os, sys; log = sys.argv[1]; print(os.listdir(log), 'torch' in sys.modules)\n"
        "from torch.distributed import is_available; print(len(os.listdir(log)), sys.modules['torch'].__spec__.origin)"
    )
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)}
    finished = run([server.python, "-c", code, str(tmp_path)], warm.environment(environment()) | env)
    assert re.fullmatch(r"\[\] False\n[12] /.*/torch/__init__.py\n", finished.out), finished.output


def test_too_late_for_a_warm_start(server: Warm) -> None:
    """A program that sets what torch reads when it is imported is told that it came too late."""
    code = "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'; import torch"
    finished = run([server.python, "-c", code], warm.environment(environment()))
    assert finished.err.startswith("tracehook: PYTORCH_CUDA_ALLOC_CONF changed"), finished.output


def test_signals_and_the_end_of_the_client(server: Warm) -> None:
    """A signal reaches the program; whoever kills what stands for the program kills the program and its group."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'usr1\\n'))\n"
        "os.write(1, b'parent\\n' if os.fork() else b'child\\n')\n"
        "while True: time.sleep(1)"
    )
    env = warm.environment(environment()) | {"TRACEHOOK_WARM_RUN": "signals"}
    with subprocess.Popen([server.python, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        said = {client.stdout.readline(), client.stdout.readline()}
        living = server.living("signals")
        client.send_signal(signal.SIGUSR1)
        said.add(client.stdout.readline())
        client.kill()
    assert (said, len(living)) == ({"parent\n", "child\n", "usr1\n"}, 2)
    assert client.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while server.living("signals") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.living("signals") == []


def test_orphans_are_found(server: Warm) -> None:
    """A process that a program leaves is counted, also when it has made a session of its own."""
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)"
    for left in (code, code.replace("os.setsid(); ", "")):
        finished = run([server.python, "-c", left], warm.environment(environment()), grace=0.3)
        assert (finished.status, finished.orphans) == (0, 1)


def test_descriptors_are_passed_on(server: Warm, tmp_path: Path) -> None:
    """A program has the descriptors that were left open for it, by their numbers."""
    with (tmp_path / "file").open("w+") as file:
        number = file.fileno()
        code = f"import os; os.write({number}, b'written'); print(set(os.listdir('/proc/self/fd')) >= {{'{number}'}})"
        done = subprocess.run(
            [server.python, "-c", code], env=warm.environment(environment()), pass_fds=[number], capture_output=True
        )
        assert done.stdout == b"True\n", done
        assert (tmp_path / "file").read_text() == "written"


def test_a_rehearsal_that_would_start_cold_fails() -> None:
    """A test that gives what the interpreter reads has to say `cold`, or it would take seconds more, unnoticed."""
    with pytest.raises(AssertionError, match=r"not started warm: .*'MKL_NUM_THREADS'"):
        rehearse("plain.py", env={"MKL_NUM_THREADS": "3"})


@pytest.mark.parametrize(
    ("code", "status", "orphans"),
    [
        ("sys.exit(3 * rank)", 3, 0),
        ("rank and os.kill(os.getpid(), 9)", 128 + 9, 0),
        ("os.fork() or time.sleep(60)", 0, 2),
    ],
    ids=["status", "killed", "orphans"],
)
def test_a_rehearsal_without_the_command(tmp_path: Path, code: str, status: int, orphans: int) -> None:
    """Where the ranks are started directly, the status is what the command would say; who is left is counted."""
    script = tmp_path / "rank.py"
    script.write_text(f"import os, sys, time\nrank = int(os.environ['RANK'])\n{code}")
    run = rehearse(script, ranks=2, grace=0.3 if orphans else GRACE)
    assert (run.status, run.finished.orphans, run.finished.late) == (status, orphans, False), run.output


def test_a_rehearsal_that_is_late_is_ended(tmp_path: Path) -> None:
    """After its deadline no rank is left."""
    script = tmp_path / "rank.py"
    script.write_text("import time\nprint('begins', flush=True)\ntime.sleep(60)")
    run = rehearse(script, ranks=2, timeout=5)
    assert (run.status, run.finished.late, run.finished.orphans) == (128 + 9, True, 0), run.output
    assert run.finished.out.count("begins") == 2


def _command(*arguments: str | Path, **env: str) -> Finished:
    return run([SCRIPTS / "tracehook", "rehearse", *arguments], env, timeout=120)


def test_ranks_are_warm_when_torchrun_chooses_their_threads(tmp_path: Path) -> None:
    """And the command says how many. Torchrun sets OMP_NUM_THREADS for them if nobody has, after torch was imported."""
    job = tmp_path / "threads.py"
    told = "f\"{os.environ['OMP_NUM_THREADS']} {torch.get_num_threads()}\\n\".encode()"
    job.write_text(f"import os, torch; os.write(1, {told})")  # whole: both ranks print at the same time
    torchrun = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    command = ["env", "-u", "OMP_NUM_THREADS", str(SCRIPTS / "tracehook"), "rehearse", "--devices", "2", "--warm", "--"]
    finished = run([*command, *torchrun, job], timeout=120)
    assert finished.status == 0, finished.output
    assert finished.out.count("1 1\n") == 2, finished.output
    assert "warm start: 3 processes were forked, 0 started cold\n" in finished.out


def test_the_command_says_why_a_process_was_cold() -> None:
    """A process whose environment torch would have read otherwise starts cold, and says so by its variable."""
    code = "import subprocess, sys, os; subprocess.run([os.environ['PYTHON_EXEC'], '-c', 'import sys; sys.exit(3)'], "
    code += "env=os.environ | {'MKL_NUM_THREADS': '3'})"
    finished = _command("--warm", "--", sys.executable, "-c", code)
    assert finished.status == 0, finished.output
    assert "warm start: 1 processes were forked, 1 started cold (1 for MKL_NUM_THREADS)\n" in finished.out


def test_few_processes_take_down_their_heap_at_one_time(server: Warm, tmp_path: Path) -> None:
    """Each copies then what it shared, and the ranks of a job end together. Those of another run do not count."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import os, sys, time\n"
        "class Heap:\n"
        "    def __del__(self, time=time, write=os.write, file=os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)):\n"
        "        write(file, b'+')\n"
        "        time.sleep(0.2)\n"
        "        write(file, b'-')\n"
        "heap = Heap()\n"
        "with open(sys.argv[1], 'a') as ready:\n"
        "    ready.write('.')\n"
        "while open(sys.argv[1]).read().count('.') < 16:\n"
        "    time.sleep(0.05)\n"
    )
    said = {run: tmp_path / run for run in ("one", "other")}
    started = []
    for run_name, file in said.items():
        file.touch()
        env = warm.environment(environment()) | {"TRACEHOOK_WARM_RUN": f"{tmp_path.name}.{run_name}"}
        started += [subprocess.Popen([server.python, script, file], env=env) for _ in range(16)]
    assert [process.wait(60) for process in started] == [0] * 32
    for file in said.values():
        steps = [1 if sign == "+" else -1 for sign in file.read_text().replace(".", "")]
        assert len(steps) == 32
        assert 1 < max(itertools.accumulate(steps)) <= 8


def test_no_warm_start(tmp_path: Path) -> None:
    """Where torch cannot be imported there is one line, and exit status 2."""
    library = tmp_path / "torch" / "lib" / "libc10_cuda.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('torch is broken')")
    finished = _command("--warm", "--", sys.executable, "-c", "print('ran')", PYTHONPATH=str(tmp_path))
    assert finished.status == 2, finished.output
    assert finished.out == ""
    assert finished.err == "tracehook rehearse: no warm start: ImportError: torch is broken\n"


def test_many_ranks(tmp_path: Path) -> None:
    """Sixteen ranks on one machine reduce over all and over a subgroup, and the audit finds nothing."""
    job = rehearse(EXAMPLES / "many_ranks.py", ranks=16, torchrun=True, log=tmp_path, timeout=120).assert_good()
    assert "16 ranks, MiB of memory" in job.finished.out
    assert len(job.logs) == 16
    Audit(tmp_path).expect(0)

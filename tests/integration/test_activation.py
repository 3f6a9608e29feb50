"""How tracehook comes into a process, and that it never stands in the way of `import torch`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import environment, forked, python, run

from tracehook.log.reader import read_directory

LOADED = (
    "import sys, torch; print(sorted(n for n in sys.modules if n.startswith('tracehook')), torch.cuda.is_initialized())"
)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_off_loads_one_small_module(value: str | None) -> None:
    """With the variable unset, empty or 0, `import torch` loads no core, no service and nothing that they need."""
    env = {} if value is None else {"SYMM_REGISTER_HOOK": value}
    run = python(LOADED, env=env)
    assert run.out == "['tracehook', 'tracehook._autoload'] False\n", run.output
    assert run.err == ""


def test_on_starts_without_cuda(tmp_path: Path) -> None:
    """With the variable set to 1 the service runs after `import torch`, without CUDA and without a word on stderr."""
    code = LOADED + "; import tracehook; print(tracehook.status()['state'])"
    run = python(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    first, state = run.out.splitlines()
    assert "'tracehook._core'" in first
    assert "'tracehook.hook.service'" in first
    assert first.endswith("False")
    assert state == "waiting"
    assert (run.status, run.err) == (0, "")
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    assert list(tmp_path.glob("*.ring")) == []


def test_a_module_of_the_program_is_not_taken_for_one_of_python(tmp_path: Path) -> None:
    """Many programs have a `secrets.py` beside them: it runs when they import it, and not before."""
    Path(tmp_path, "secrets.py").write_text("raise ValueError('before its time')\n")
    Path(tmp_path, "train.py").write_text("import torch; print('trained')\n")
    settings = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path / "logs")}
    trained = run([sys.executable, tmp_path / "train.py"], settings, 100)
    assert (trained.status, trained.out, trained.err) == (0, "trained\n", ""), trained.output


@pytest.mark.parametrize("hints", ["", "operation='all_reduce', nbytes=8"])
def test_scopes_do_nothing_without_a_driver(hints: str) -> None:
    """One line says so, and no hint makes a scope ask torch what it cannot answer there."""
    code = f"import torch, tracehook\nwith tracehook.symmetric({hints}): print('inside')"
    run = python(code, env={"SYMM_REGISTER_HOOK": "1"})
    assert (run.status, run.out) == (0, "inside\n"), run.output
    assert len(run.lines("no symmetric memory, scopes do nothing")) == 1, run.output


def test_import_tracehook_alone() -> None:
    """`import tracehook` loads neither torch nor the native core, and neither does a look at its version."""
    run = python("import sys, tracehook; tracehook.__version__; print({'torch', 'tracehook._core'} & set(sys.modules))")
    assert run.out == "set()\n", run.output


def test_status_before_anything() -> None:
    """`status()` and `disable()` before `enable()` answer "off", without torch."""
    code = "import sys, tracehook; tracehook.disable(); print(tracehook.status()['state'], 'torch' in sys.modules)"
    assert python(code).out == "off False\n"


def test_autoload_switched_off(tmp_path: Path) -> None:
    """With torch's own switch for plug-ins off, nothing is loaded whatever our variable says."""
    env = {"SYMM_REGISTER_HOOK": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "SYMM_REGISTER_LOG": str(tmp_path)}
    run = python(LOADED, env=env)
    assert (run.out, run.status) == ("[] False\n", 0), run.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["tracehook._core", "tracehook.hook.service", "tracehook.settings"])
def test_broken_installation(missing: str) -> None:
    """If a part of tracehook cannot be imported, `import torch` works, with one line that names it."""
    code = f"import sys; sys.modules[{missing!r}] = None; import torch; print(torch.zeros(2).sum().item())"
    run = python(code, env={"SYMM_REGISTER_HOOK": "1"})
    assert (run.out, run.status) == ("0.0\n", 0), run.output
    assert len(run.err.splitlines()) == 1, run.output
    assert run.err.startswith("tracehook is off: ")
    assert missing in run.err


def test_a_reason_of_several_lines_is_said_in_one() -> None:
    """Whatever an exception says, there is one line."""
    code = """import tracehook.settings as settings
def fail(): raise ValueError("first\\nsecond")
settings.from_environment = fail
import torch"""
    run = forked(code, env={"SYMM_REGISTER_HOOK": "1"})
    assert (run.err, run.status) == ("tracehook is off: first second\n", 0), run.output


def test_no_thread_imports_anything_behind_the_program(tmp_path: Path) -> None:
    """In a child that is forked meanwhile the lock of a half-imported module would be taken for ever."""
    code = """import sys, time, torch
there = set(sys.modules)
time.sleep(0.5)
print(sorted(set(sys.modules) - there))"""
    run = python(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert run.out == "[]\n", run.output


def test_threading_knows_no_thread_of_the_log(tmp_path: Path) -> None:
    """A program finds its own threads alone."""
    code = """import threading, torch, tracehook
tracehook.status()
print([thread.name for thread in threading.enumerate()])"""
    run = python(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (run.out, run.err) == ("['MainThread']\n", ""), run.output


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    """A log may lie where the name of a folder is not UTF-8."""
    folder = tmp_path / os.fsdecode(b"logs\xe9")
    folder.mkdir()
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(folder)}
    run = forked("import torch, tracehook; print(tracehook.status()['state'])", env=env)
    assert (run.out, run.err) == ("waiting\n", "")
    assert len([*folder.glob("*.jsonl")]) == 1


def test_a_file_of_the_program_with_the_name_of_a_package_is_not_run(tmp_path: Path) -> None:
    """The log is whole nevertheless, and says what it says without those files."""
    for name in ("structlog", "rich", "orjson", "colorama", "unicodedata"):
        Path(tmp_path, f"{name}.py").write_text("print('mine'); raise SystemExit('broken on purpose')\n")
    env = {"SYMM_REGISTER_HOOK": "1", "PYTHONPATH": str(tmp_path), "SYMM_REGISTER_LOG": str(tmp_path / "logs")}
    run = python("import torch, tracehook; print(tracehook.status()['state'])", env=env)
    assert (run.out, run.err, run.status) == ("waiting\n", "", 0), run.output
    (log,) = read_directory(tmp_path / "logs")
    assert log.ended
    assert not log.has_ring


@pytest.mark.parametrize(
    "what", ["del sys.argv; import torch", "import torch; sys.excepthook = sys.stdout = sys.stderr = None"]
)
def test_a_program_without_what_python_has(tmp_path: Path, what: str) -> None:
    """An embedded interpreter may have no arguments, and one that ends no streams."""
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path / "logs")}
    run = python(f"import sys; {what}", env=env)
    assert (run.err, run.status) == ("", 0), run.output
    (log,) = read_directory(tmp_path / "logs")
    assert log.ended
    assert not log.has_ring


@pytest.mark.parametrize("first", ["import tracehook; tracehook.enable(); import torch", "import torch, tracehook"])
def test_enable_before_and_after_torch(first: str) -> None:
    """`enable()` works before and after `import torch`, twice, with `disable()` in between, without CUDA coming up."""
    code = f"""{first}
seen = []
for act in (tracehook.enable, tracehook.enable, tracehook.disable, tracehook.disable, tracehook.enable):
    act()
    seen.append(tracehook.status()["state"])
print(*seen, torch.cuda.is_initialized())
"""
    run = forked(code)
    assert run.out == "waiting waiting off off waiting False\n", run.output
    assert (run.status, run.err) == (0, "")


def test_enable_with_the_variable_set(tmp_path: Path) -> None:
    """`enable()` after the variable did the same changes nothing: one log, one trace."""
    code = "import torch, tracehook; tracehook.enable(); tracehook.enable()"
    run = forked(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)})
    assert (run.status, run.err) == (0, "")
    (log,) = tmp_path.glob("*.jsonl")
    assert [log.read_text().count(f'"{name}"') for name in ("trace.begin", "hook.enable", "trace.end")] == [1, 1, 1]


def test_many_threads_enable_at_once(tmp_path: Path) -> None:
    """Eight threads that call `enable()` at the same moment start one service, however long it takes to be made."""
    code = """import threading, time, torch, tracehook
from tracehook import settings
read = settings.from_environment
def slowly():
    time.sleep(0.3)
    return read()
settings.from_environment = slowly
from tracehook.log.threads import living
gate = threading.Barrier(8)
failures = []
def work():
    gate.wait()
    try:
        tracehook.enable()
    except BaseException as problem:
        failures.append(problem)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(failures, sum(t.name == "tracehook-log" for t in living()))
"""
    run = forked(code, env={"SYMM_REGISTER_LOG": str(tmp_path)})
    assert run.out == "[] 1\n", run.output
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_no_stderr() -> None:
    """With stderr closed, complaints do not land on stdout, and the program runs."""
    code = "import torch; print('only this')"
    line = ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    env = environment({"SYMM_REGISTER_HOOK": "maybe", "SYMM_REGISTER_NONSENSE": "1"})
    run = subprocess.run(line, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, b"only this\n")


def test_the_job_ends_when_it_wants(tmp_path: Path) -> None:
    """The log's thread does not keep a program from ending, and an end by os._exit leaves a log that is read."""
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)}
    run = forked("import os, torch; os._exit(7)", env=env, timeout=30)
    assert (run.status, run.late, run.err) == (7, False, "")
    (log,) = tmp_path.glob("*.jsonl")
    assert log.stat().st_size > 0
    assert log.with_suffix(".ring").exists()

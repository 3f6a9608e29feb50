"""The command line: what each command does, says and returns."""

import json
import re
import signal
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support import warm
from support.processes import SCRIPTS, Finished, environment, run
from support.rehearsal import JOBS, RULES_BROKEN

from tracehook import versions
from tracehook.rehearsal.warm import SOCKET

TRACEHOOK = SCRIPTS / "tracehook"
SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SYMM_')}))"


def _tracehook(*arguments: str | Path, **changes: str) -> Finished:
    return run([TRACEHOOK, *arguments], changes)


def _warmly(*arguments: str | Path, **changes: str) -> Finished:
    """Run the command, and what it rehearses, without that each process imports torch."""
    if not warm.WANTED:
        return _tracehook(*arguments, **changes)
    server = warm.server(environment(changes))
    return run([server.python, TRACEHOOK, *arguments], warm.environment({}) | {SOCKET: str(server.socket)} | changes)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ("run", "rehearse", "doctor", "summary")),
        (("run",), ("--log", "--check", "SYMM_REGISTER_HOOK=1")),
        (("rehearse",), ("--devices", "--faults", "86", "emulated")),
        (("doctor",), ("Exit status",)),
        (("summary",), ("Exit status 2", "SYMM_REGISTER_LOG")),
    ],
)
def test_help(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    """`--help` of each command says what it does and what its exit status means."""
    finished = _tracehook(*command, "--help", COLUMNS="200")
    assert finished.status == 0
    assert finished.err == ""
    for word in words:
        assert word in finished.out


def test_run_sets_the_variables(tmp_path: Path) -> None:
    """`run` sets the variables that its options name, begins a job, and becomes the command."""
    finished = _tracehook("run", "--log", tmp_path, "--check", "--", sys.executable, "-c", SHOW)
    variables = json.loads(finished.out)
    assert variables.pop("SYMM_REGISTER_JOB")
    assert variables.pop("SYMM_REGISTER_LOCAL") == "all"  # of all tests
    set_to = {"HOOK": "1", "LOG": str(tmp_path), "CHECK": "1"}
    assert variables == {f"SYMM_REGISTER_{name}": value for name, value in set_to.items()}
    assert finished.status == 0


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_what_is_not_its_own_is_passed_on(command: str) -> None:
    """Options after the command belong to the command, also those that `run` and `rehearse` have themselves."""
    code = "import sys; print(sys.argv[1:])"
    given = ["--log", "x", "--help", "--devices", "--", "-y"]
    finished = _tracehook(command, "--", sys.executable, "-c", code, *given)
    assert finished.out.splitlines()[0] == str(given), finished.output


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_exit_status(command: str) -> None:
    """The exit status is the command's."""
    assert _tracehook(command, "--", sys.executable, "-c", "raise SystemExit(255)").status == 255


def test_killed_command() -> None:
    """A command that a signal ends is seen as such: itself under `run`, as 128 and more under `rehearse`."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert _tracehook("run", "--", sys.executable, "-c", code).status == -signal.SIGTERM
    assert _tracehook("rehearse", "--", sys.executable, "-c", code).status == 128 + signal.SIGTERM


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_command_that_cannot_run(tmp_path: Path, command: str) -> None:
    """A command that does not exist, or may not be run, is 127 with one line that names it."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for name, cause in (("no-such-command", "No such file"), (str(plain), "Permission denied")):
        finished = _tracehook(command, "--", name)
        assert finished.status == 127, finished.output
        assert name in finished.err
        assert cause in finished.err
        assert len(finished.err.splitlines()) == 1
        assert "Traceback" not in finished.err


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_file_of_python_is_no_command(tmp_path: Path, command: str) -> None:
    """The one line says how to run it."""
    program = tmp_path / "train.py"
    program.touch()
    finished = _tracehook(command, program)
    assert finished.status == 127, finished.output
    (line,) = finished.err.splitlines()
    assert line.endswith(f"tracehook {command} -- python {program}")


def test_the_last_line_of_a_failed_rehearsal_is_what_to_do(tmp_path: Path) -> None:
    """The audit of its logs, if it has logs; else how to get them. Of one that went well there is no such line."""
    fails = [sys.executable, "-c", "import torch; torch.ones(2, device='cuda'); raise SystemExit(3)"]
    logs = tmp_path / "of this job"
    finished = _warmly("rehearse", "--log", logs, "--", *fails)
    assert finished.status == 3, finished.output
    assert finished.err.splitlines()[-1] == f"rehearsal: exit status 3; now: tracehook audit '{logs}'"
    assert "with --log DIR" in _tracehook("rehearse", "--", "false").err.splitlines()[-1]
    assert _tracehook("rehearse", "--", "true").err == ""


def test_a_full_disk_is_one_line() -> None:
    """Where the output goes, not where the logs lie."""
    finished = run(["sh", "-c", f"{TRACEHOOK} --version > /dev/full"], {})
    assert (finished.status, finished.err) == (2, "tracehook: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("command", ["run", "rehearse"])
@pytest.mark.parametrize("rest", [(), ("--",)])
def test_no_command(command: str, rest: tuple[str, ...]) -> None:
    """Without a command the exit status is 2, with what was expected."""
    finished = _tracehook(command, *rest)
    assert finished.status == 2
    assert "no command" in finished.err


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_log_directory_that_cannot_be_used(tmp_path: Path, command: str) -> None:
    """It is refused before anything runs, in one line with the cause."""
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        finished = _tracehook(command, "--log", directory, "--", "echo", "ran")
        assert (finished.status, finished.out, len(finished.err.splitlines())) == (2, "", 1), finished.output
        assert f"--log {str(directory)!r} cannot be made a directory" in finished.err


def test_a_command_that_fails_is_no_success(tmp_path: Path) -> None:
    """The last lines say so, also where no process came to a call that could break a rule."""
    finished = _tracehook("rehearse", "--", sys.executable, tmp_path / "nothere.py")
    assert finished.status == 2, finished.output
    assert finished.out == "rehearsal: no rule broken, but the command failed\n", finished.output


def test_broken_rule() -> None:
    """A job that breaks a rule has status 86 and the rule by name, though the job itself ended with 0."""
    finished = _warmly("rehearse", "--", sys.executable, JOBS / "breaks_a_rule.py")
    assert finished.status == RULES_BROKEN, finished.output
    assert "rule C4 broken" in finished.err
    assert "rehearsal: 1 violations" in finished.err
    at_the_end = finished.err.partition("rehearsal: 1 violations")[2]
    assert re.search(r"\n    rank 0 of its communicator, pid \d+: \S", at_the_end), finished.output
    assert "no rule broken" not in finished.out


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        *(("--devices", value, "--devices") for value in ("0", "65", "many")),
        ("--faults", "ncclAllReduce:vanish@1", "cannot read 'ncclAllReduce:vanish@1': write CALL:fail@N=RESULT"),
        ("--faults", "ncclAllReduce:slow@1", "cannot read 'ncclAllReduce:slow@1'"),
        ("--faults", "ncclAllReduce:fail@1,", "cannot read ''"),
        ("--faults", "ncclAlReduce:fail@1", "the emulation has no call ncclAlReduce: is ncclAllReduce meant?"),
        ("--nccl", "newest", "expected a version such as 2.30.7"),
        ("--memory", "much", "expected bytes"),
        ("--memory", "1000MiB", "expected whole GiB"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(option: str, value: str, told: str) -> None:
    """Before anything starts: a job without the fault, for instance, would pass, and show nothing."""
    finished = _tracehook("rehearse", option, value, "--", "echo", "ran")
    assert finished.status == 2, finished.output
    assert told in " ".join(finished.err.split())
    assert "ran" not in finished.out


def test_the_options_of_a_rehearsal_choose_what_is_played() -> None:
    """The version of NCCL and the memory of a device."""
    code = """import ctypes, torch
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found := ctypes.c_int()))
print(found.value, torch.cuda.mem_get_info()[1] >> 30)
"""
    finished = _warmly("rehearse", "--nccl", "2.27.7", "--memory", "80GiB", "--", sys.executable, "-c", code)
    assert finished.status == 0, finished.output
    assert "22707 80" in finished.out


def test_a_job_that_takes_too_long_is_ended() -> None:
    """With an exit status of its own, as `timeout` has it."""
    finished = _tracehook("rehearse", "--timeout", "1", "--", "sleep", "60")
    assert finished.status == 124, finished.output
    assert finished.lines("ran longer than --timeout 1")


def test_a_fault_that_was_never_played_is_named() -> None:
    """The job passes, and says at the end that it does not show what was meant."""
    faults = "ncclAllReduce:slow@1=1ms,ncclAllReduce:slow@1000=1ms,ncclCommRegister:fail@1#rank7"
    finished = _warmly("rehearse", "--faults", faults, "--", sys.executable, JOBS / "plain.py")
    assert finished.status == 0, finished.output
    named = [line.split()[2] for line in finished.lines("was never played")]
    assert named == ["ncclAllReduce:slow@1000=1ms", "ncclCommRegister:fail@1#rank7"], finished.output


def test_rehearse_leaves_nothing_behind(tmp_path: Path) -> None:
    """The rehearsal's own files go with it."""
    finished = _warmly("rehearse", "--", sys.executable, JOBS / "plain.py", TMPDIR=str(tmp_path))
    assert finished.status == 0, finished.output
    assert list(tmp_path.iterdir()) == []


def test_rehearse_log_directory_is_reused(tmp_path: Path) -> None:
    """A second rehearsal into one directory shows its own processes only."""
    command = ("rehearse", "--log", tmp_path, "--", sys.executable, JOBS / "plain.py")
    assert _warmly(*command).status == 0
    finished = _warmly(*command)
    assert "tracehook: 1 process" in finished.out, finished.output
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_doctor_without_a_device() -> None:
    """Without a device the doctor cannot test, says how it could, and returns 1."""
    finished = _warmly("doctor", CUDA_VISIBLE_DEVICES="")
    assert finished.status == 1, finished.output
    assert "no CUDA device" in finished.out
    assert "tracehook rehearse" in finished.out
    assert "Traceback" not in finished.output


def _dotted(nccl: int) -> str:
    return f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}"


def test_a_rehearsal_needs_a_torch_with_cuda(tmp_path: Path) -> None:
    """Where none could see an emulated device, nothing is run that would look as if it had been tried."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    finished = _tracehook("rehearse", "--", "echo", "ran", PYTHONPATH=str(tmp_path))
    assert finished.status == 2, finished.output
    assert "is a build without CUDA" in finished.output
    assert "ran" not in finished.out


def test_doctor_in_a_rehearsal() -> None:
    """In a rehearsal the doctor sees one segment come and go, names what it chose, and returns 0."""
    finished = _warmly("rehearse", "--", TRACEHOOK, "doctor", SYMM_REGISTER_TIMEOUT="5")
    assert finished.status == 0, finished.output
    for word in (
        "1 segment seen allocated, 1 seen freed",
        "not measured: the devices are emulated",
        "matches the running torch",
        "SYMM_REGISTER_TIMEOUT",
        "recorded" if versions.group_of(metadata.version("torch")) == "nccl2" else "│ tracehook ",
        _dotted(versions.of_torch(metadata.version("torch")).nccl),
    ):
        assert word in finished.out


TORCHS_OWN = {"TORCH_DIST_USE_NCCL2": "0", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"SYMM_REGISTER_LOCAL": "own"}, "tracehook, always"),
        ({"SYMM_REGISTER_LOCAL": "observe"}, "what others do is recorded"),
        ({"SYMM_REGISTER_LOCAL": "off"}, "is not recorded"),
        (TORCHS_OWN, "torch's own hook, which is recorded"),
    ],
)
def test_doctor_says_who_registers(changes: dict[str, str], word: str) -> None:
    """As SYMM_REGISTER_LOCAL says, or as torch's variable does."""
    doctor = _tracehook if changes is TORCHS_OWN else _warmly
    assert word in doctor("doctor", **changes, CUDA_VISIBLE_DEVICES="").out


def test_doctor_where_the_hook_cannot_work() -> None:
    """With an allocator that cannot be followed the doctor returns 1 and gives the reason, without a traceback."""
    finished = _tracehook("rehearse", "--", TRACEHOOK, "doctor", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert finished.status == 1, finished.output
    assert "no_caching" in finished.out
    assert "Traceback" not in finished.output


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "{directory}"),
        (b'{"event": "trace.begin", "schema": "9.0"}\n', "9.0"),
        (b"\xff\xfe\x00 nothing\n", ""),
    ],
    ids=["no logs", "of a later schema", "none of ours"],
)
def test_summary_of_nothing(tmp_path: Path, content: bytes | None, told: str) -> None:
    """Where there is no log that can be read: status 2 and one line that says what was expected."""
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    for directory in (tmp_path, tmp_path / "missing") if content is None else (tmp_path,):
        finished = _tracehook("summary", directory)
        assert finished.status == 2
        assert len(finished.err.splitlines()) == 1, finished.output
        assert told.format(directory=directory) in finished.err


def test_summary_of_a_job(tmp_path: Path) -> None:
    """The table of a rehearsed job is the same when asked for later, and a log of a killed process is marked."""
    finished = _warmly("rehearse", "--log", tmp_path, "--", sys.executable, JOBS / "plain.py", COLUMNS="200")
    assert finished.status == 0, finished.output
    later = _warmly("summary", tmp_path, COLUMNS="200")
    assert later.status == 0
    assert later.out.strip() in finished.out
    assert "ended" in later.out.splitlines()[3]
    assert "0 lost" not in later.out
    (log,) = tmp_path.glob("*.jsonl")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert "killed" in _warmly("summary", tmp_path, COLUMNS="200").out.splitlines()[3]


def test_the_widest_summary_fits_100_columns(tmp_path: Path) -> None:
    """Where no terminal says how wide it is: with windows, counts of four digits, and all that is said below."""
    lines = [{"event": "trace.begin", "schema": "1.2", "t_ns": 1, "rank": 1023, "pid": 1234567}]
    lines += [{"event": "segment.alloc", "seq": 1, "t_ns": 2, "device": 0}, {"event": "segment.free"}] * 1500
    lines += [{"event": "register.local", "ok": True, "comm_id": 1}, {"event": "agreement.failed"}] * 9000
    lines += [{"event": "register.window", "ok": True, "comm_id": 1}, {"event": "register.window"}] * 1500
    lines += [{"event": "range.map", "total": 1 << 30}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    finished = _tracehook("summary", tmp_path)
    assert finished.status == 0, finished.output
    assert "9000" in finished.out
    assert max(map(len, finished.out.splitlines())) <= 100, finished.out
    narrow = _tracehook("summary", tmp_path, COLUMNS="60").out
    assert max(map(len, narrow.splitlines())) <= 60, narrow


def test_summary_as_json(tmp_path: Path) -> None:
    """`--json` has the counts of each process, and the files that could not be read; of the job that is chosen."""
    for pid, job, time in ((6, "old", "2026-11-21T12:00:00Z"), (7, "new", "2026-11-21T13:00:00Z")):
        who = {"rank": 0, "pid": pid, "job": job, "time": time}
        lines = (
            {"event": "trace.begin", "schema": "1.2", "t_ns": 1, **who},
            {"event": "segment.alloc", "device": 0},
            {"event": "trace.end", "dropped": 0},
        )
        (tmp_path / f"{job}.rank0.h.{pid}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "bad.jsonl").write_text("text\n")
    finished = _tracehook("summary", tmp_path, "--json")
    assert finished.status == 0, finished.output
    assert "left out: old" in finished.err
    told = json.loads(finished.out)
    (process,) = told["processes"]
    assert (told["version"], told["not_shown"], len(told["unreadable"])) == (1, 0, 1)
    none = {"made": 0, "undone": 0, "dropped": 0, "left": 0}
    assert process == {
        "file": "new.rank0.h.7.jsonl", "host": None, "job": "new", "rank": 0, "pid": 7, "ended": True, "end": "ended",
        "recovered": 0, "lost": 0, "segments": 1, "segments_freed": 0, "expandable_bytes": 0, "in_effect": 0,
        "in_vain": 0, "left_out": 0, "communicators": 0, "destroyed": 0,
        "aborted": 0, "registrations": none, "windows": none, "failures": 0, "warnings": 0,
    }  # fmt: skip
    older = _tracehook("summary", tmp_path, "--json", "--job", "old")
    assert (json.loads(older.out)["processes"][0]["job"], older.err) == ("old", "")
    assert json.loads(_tracehook("summary", tmp_path, "--json", "--since", "2026-11-21T12:30:00").out) == told

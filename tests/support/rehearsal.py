"""Run a job of tests/rehearsal/jobs (or any script) on emulated devices, and read what it left."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from support import alarms, warm
from support.processes import GRACE, SCRIPTS, Finished, Running, environment, run, run_together
from tracehook import versions
from tracehook.log import reader
from tracehook.rehearsal import emulation
from tracehook.rehearsal.warm import SOCKET, Warm

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "rehearsal" / "jobs"
EXAMPLES = ROOT / "examples"
RULES_BROKEN = 86
CHOICE = "TORCH_DIST_USE_NCCL2"
# 1: jobs run on real devices, so a test that reads nothing of the emulation holds there too.
ON_DEVICES = os.environ.get("REHEARSE_ON_DEVICES", "0") == "1"
# Of the machine: devices, what keeps NCCL and torch from NVLink multicast, and where a torch of another folder lies.
_OF_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
    "PYTHONPATH",
)
# Without what would only make the end of a process or of a collective that hangs slow.
QUICK = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
}
HAS_CHOICE = versions.group_of(metadata.version("torch"), {CHOICE: "1"}) == "nccl2"


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsal: how it ended, the facts that the job told, and the logs of processes with a rank or CUDA."""

    finished: Finished
    logs: list[reader.ProcessLog]
    ranks: int = 1

    @property
    def status(self) -> int:
        """The exit status: the job's, or 86."""
        return self.finished.status

    @property
    def output(self) -> str:
        """What was said, for the message of a failed assertion."""
        return self.finished.output

    @property
    def broken(self) -> list[str]:
        """Return the rules of NCCL that were broken, by their names."""
        return sorted(set(re.findall(r"rehearsal: rule (\w+) broken", self.finished.err)))

    def facts(self, rank: int = 0) -> dict[str, Any]:
        """Return what the job told with `tell(...)` on `rank`; later facts replace earlier ones."""
        found: dict[str, Any] = {}
        for line in self.finished.out.splitlines():
            _, mark, text = line.partition(f"fact {rank} ")
            if mark:
                found.update(json.loads(text))
        return found

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the job told on each rank, in their order."""
        return [self.facts(rank) for rank in range(self.ranks)]

    def log(self, rank: int | None = None) -> reader.ProcessLog:
        """Return the log of the only process, or of `rank`."""
        found = [log for log in self.logs if rank is None or log.rank == rank]
        assert len(found) == 1, f"{len(found)} logs for rank {rank}\n{self.output}"
        return found[0]

    def events(self, name: str, rank: int | None = None) -> list[dict[str, Any]]:
        """Return the events called `name`, of one rank or of all."""
        return [
            event
            for log in self.logs
            if rank is None or log.rank == rank
            for event in log.events
            if event["event"] == name
        ]

    def assert_good(self) -> Rehearsal:
        """Assert that the job ended with 0, in time, broke no rule and left no process; return it."""
        assert self.status == 0, self.output
        assert self.broken == [], self.output
        assert self.finished.orphans == 0, self.output
        return self


def rehearse(
    job: str | Path,
    *arguments: str,
    log: Path | None = None,
    hook: bool = True,
    devices: int = 1,
    ranks: int = 0,
    torchrun: bool = False,
    faults: str = "",
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    cold: bool = False,
    grace: float = GRACE,
) -> Rehearsal:
    """Run `job` as `tracehook rehearse` does, in one process or in `ranks`, and return the logs of directory `log`.

    Its processes are forked from a warm server, unless `cold`; with `cold`, and under torchrun, the command itself runs
    them. What the interpreter itself reads may be in `env` only with `cold`.
    What the job leaves running has `grace` seconds to end by itself.
    Without `log` the hook is off. With `log` and not `hook` it is off until the job calls `tracehook.enable()`. Backend
    "nccl" is torch's stock group, also where its default is another (see test_observed.py) unless `env` says so.
    """
    changes = {CHOICE: "0"} | dict(env or {})
    if not HAS_CHOICE:
        del changes[CHOICE]  # it would only be in the way of a warm start
    if log is not None and not hook:
        changes["SYMM_REGISTER_LOG"] = str(log)
    program = [str(job if isinstance(job, Path) else JOBS / job), *arguments]
    wanted = _Wanted(program, ranks, max(devices, ranks), faults, log if hook else None)
    server = None
    if ON_DEVICES:
        finished = _run_on_devices(wanted, changes, timeout, grace)
        return Rehearsal(finished, read_logs(log) if log is not None else [], max(ranks, 1))
    if warm.WANTED and not cold:
        of_torch = {name: value for name, value in changes.items() if name.startswith(("PYTORCH_", "TORCH_"))}
        server = warm.server(environment(of_torch), program)
        changes = warm.environment({}) | {SOCKET: str(server.socket)} | changes
    if server is None or torchrun:
        with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as folder:
            with alarms.Watch(Path(folder)) as watch:
                own = {"TMPDIR": folder} if alarms.SECONDS else {}  # where the command has its directory
                finished = run(_command(wanted, server, torchrun), changes | own, timeout, grace=grace)
            watch.note(finished.status, finished.late)
    else:
        finished = _run_here(wanted, server, changes, timeout, grace)
    return Rehearsal(finished, read_logs(log) if log is not None else [], max(ranks, 1))


def rehearse_until(seconds: float, job: str | Path, *arguments: str, ranks: int, **how: Any) -> Rehearsal:
    """Run a job whose ranks an operator ends, by SIGTERM, when all have run for so long: jobs/launch_and_end.py."""
    launched = (str(ranks), str(seconds), "SIGTERM", str(job if isinstance(job, Path) else JOBS / job))
    return rehearse("launch_and_end.py", *launched, *arguments, devices=ranks, **how)


def write_job(file: Path, text: str) -> Path:
    """Write a job that may import what lies beside those of this folder. `text` begins with an empty line."""
    assert text.startswith("\n")
    file.write_text(f"import sys; sys.path.append({str(JOBS)!r})" + text)
    return file


def start_of(folder: Path, job: Path, *beside: Path, first: str = "") -> Path:
    """Write what runs `job`, which may import from its own folder, those `beside`, and that of the jobs. Run it so.

    `first`: statements to be carried out before.
    """
    paths = [str(each) for each in (job.parent, *beside, JOBS)]
    start = folder / "start.py"
    start.write_text(
        f"import sys, runpy\n{first}\nsys.path[:0] = {paths}; sys.argv[0] = {str(job)!r}\n"
        f"runpy.run_path({str(job)!r}, run_name='__main__')\n"
    )
    return start


def run_command(
    *job: str | Path,
    devices: int,
    limit: float = 0,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cold: bool = False,
    options: Sequence[str] = (),
) -> Finished:
    """Run what ``python JOB`` would run, such as a launcher and its ranks, by ``tracehook rehearse``.

    It is ended when ranks have hung for `limit` seconds. Command, launcher and ranks are forked from a warm server,
    unless `cold`.
    """
    usual = ["--devices", str(devices), "--hang-timeout", str(limit), *(["--log", str(log)] if log else [])]
    command: list[str | Path] = [SCRIPTS / "tracehook", "rehearse", *usual, *options, "--"]
    if cold or not warm.WANTED:
        return run([*command, sys.executable, *job], env, timeout=240, cwd=JOBS)
    server = warm.server(environment(), [JOBS / word for word in job])
    changes = warm.environment({}) | {SOCKET: str(server.socket), "PYTHON_EXEC": str(server.python)} | dict(env or {})
    started = [server.python if part == sys.executable else part for part in (sys.executable, *job)]
    return run([server.python, *command, *started], changes, timeout=240, cwd=JOBS)


@dataclass(frozen=True)
class _Wanted:
    """What is to be rehearsed."""

    program: list[str]
    ranks: int  # 0: one process, which has no rank
    devices: int
    faults: str
    log: Path | None


def _command(wanted: _Wanted, server: Warm | None, torchrun: bool) -> list[str | Path]:
    """Return the command line of a rehearsal."""
    python = str(server.python) if server else sys.executable
    line: list[str | Path] = [python] if server else []
    # Tests that hang on purpose say themselves when that is over.
    line += [SCRIPTS / "tracehook", "rehearse", "--hang-timeout", "0", "--devices", str(wanted.devices)]
    line += ["--log", wanted.log] if wanted.log is not None else []
    line += ["--faults", wanted.faults] if wanted.faults else []
    if torchrun:
        launcher = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", str(wanted.ranks)]
    elif wanted.ranks:
        launcher = [python, str(JOBS / "launch.py"), str(wanted.ranks), python]
    else:
        launcher = [python]
    return [*line, "--", *launcher, *wanted.program]


def _run_on_devices(wanted: _Wanted, changes: Mapping[str, str], timeout: float, grace: float) -> Finished:
    """Run all ranks on real devices."""
    kept = {name: os.environ[name] for name in _OF_DEVICES if name in os.environ}
    if wanted.log is not None:
        kept |= {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(wanted.log.absolute())}
    launcher = [sys.executable, str(JOBS / "launch.py"), str(max(wanted.ranks, 1)), sys.executable]
    return run([*launcher, *wanted.program], kept | dict(changes), timeout, grace=grace)


def _run_here(wanted: _Wanted, server: Warm, changes: Mapping[str, str], timeout: float, grace: float) -> Finished:
    """Run all ranks with no process between us and them: the command and a launcher take longer than most jobs."""
    with tempfile.TemporaryDirectory(prefix="tracehook-rehearsal-", ignore_cleanup_errors=True) as scratch:
        common = emulation.environment(wanted.devices, Path(scratch), wanted.faults, environment(changes))
        common["PYTHON_EXEC"] = str(server.python)
        if wanted.log is not None:
            common |= {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(wanted.log.absolute())}
        each: list[dict[str, str]] = [{}]
        if wanted.ranks:
            common |= {"WORLD_SIZE": str(wanted.ranks), "TEST_STORE": f"{scratch}/store"}
            each = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(wanted.ranks)]

        def start(mark: dict[str, str], out: IO[bytes], err: IO[bytes]) -> list[Running]:
            return [warm.Forked(server, wanted.program, common | own | mark, out, err) for own in each]

        with alarms.Watch(Path(scratch)) as watch:
            finished = run_together(start, timeout, grace)
        watch.note(finished.status, finished.late)
        status = finished.status if finished.status >= 0 else 128 - finished.status
        return replace(finished, status=RULES_BROKEN if emulation.violations(Path(scratch)) else status)


def read_logs(directory: Path) -> list[reader.ProcessLog]:
    """Return the logs of `directory` without those of launchers, which import torch and use nothing of it."""
    if not list(directory.glob("*.jsonl")):
        return []
    logs = reader.read_directory(directory)
    return [log for log in logs if log.rank is not None or any("device" in event for event in log.events)]

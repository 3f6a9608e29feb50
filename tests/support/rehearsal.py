"""Run a job of tests/rehearsal/jobs (or any script) on emulated devices, and read what it left."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from support import warm
from support.processes import SCRIPTS, Finished, environment, run
from tracehook import versions
from tracehook.log import reader
from tracehook.rehearsal.warm import SOCKET

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "rehearsal" / "jobs"
EXAMPLES = ROOT / "examples"
RULES_BROKEN = 86
CHOICE = "TORCH_DIST_USE_NCCL2"
HAS_CHOICE = versions.group_of(metadata.version("torch"), {CHOICE: "1"}) == "nccl2"


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsal: how it ended, the facts that the job told, and the logs of processes with a rank or CUDA."""

    finished: Finished
    logs: list[reader.ProcessLog]

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

    def assert_good(self) -> None:
        """Assert that the job ended with 0, in time, broke no rule and left no process."""
        assert self.status == 0, self.output
        assert self.broken == [], self.output
        assert self.finished.orphans == 0, self.output


def command(
    job: str | Path, *arguments: str, ranks: int = 0, torchrun: bool = False, python: str = sys.executable
) -> list[str]:
    """Return the command of a job: in one process, in `ranks` processes, or under torchrun."""
    script = job if isinstance(job, Path) else JOBS / job
    if torchrun:
        launcher = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", str(ranks)]
    elif ranks:
        launcher = [python, str(JOBS / "launch.py"), str(ranks), python]
    else:
        launcher = [python]
    return [*launcher, str(script), *arguments]


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
) -> Rehearsal:
    """Run `job` under `tracehook rehearse`, and return the logs of directory `log`.

    Its processes are forked from a warm server, unless `cold`, or `env` has what the interpreter itself reads.
    Without `log` the hook is off. With `log` and not `hook` it is off until the job calls `tracehook.enable()`. Backend
    "nccl" is torch's stock group, also where its default is another (see test_observed.py) unless `env` says so.
    """
    changes = {CHOICE: "0"}
    line: list[str | Path] = []
    python = sys.executable
    if warm.WANTED and not cold:
        of_torch = {name: value for name, value in (env or {}).items() if name.startswith(("PYTORCH_", "TORCH_"))}
        server = warm.server(environment((changes if HAS_CHOICE else {}) | of_torch))
        changes |= warm.environment({}) | {SOCKET: str(server.socket)}
        python = str(server.python)
        line = [python]
    changes |= env or {}
    if not HAS_CHOICE:
        del changes[CHOICE]  # it would only be in the way of a warm start
    line += [SCRIPTS / "tracehook", "rehearse", "--devices", str(max(devices, ranks))]
    if log is not None and hook:
        line += ["--log", log]
    elif log is not None:
        changes["SYMM_REGISTER_LOG"] = str(log)
    if faults:
        line += ["--faults", faults]
    line += ["--", *command(job, *arguments, ranks=ranks, torchrun=torchrun, python=python)]
    finished = run(line, changes, timeout)
    return Rehearsal(finished, read_logs(log) if log is not None else [])


def read_logs(directory: Path) -> list[reader.ProcessLog]:
    """Return the logs of `directory` without those of launchers, which import torch and use nothing of it."""
    if not list(directory.glob("*.jsonl")):
        return []
    logs = reader.read_directory(directory)
    return [log for log in logs if log.rank is not None or any("device" in event for event in log.events)]

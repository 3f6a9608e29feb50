"""Start a job under torchrun with the hook on or off, and read what it printed and logged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tracehook import versions
from tracehook.audit.summary import Summary, summarise
from tracehook.log import reader

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
IS_NCCL2 = versions.group_of(torch.__version__) == "nccl2"  # what "nccl" is with this torch
IN_VAIN = {"registered-in-vain"} if IS_NCCL2 else set()  # rules that find what this group does by itself


@dataclass
class Result:
    """What a job left: exit status, output of all ranks, and their logs."""

    status: int
    output: str
    logs: list[reader.ProcessLog]

    @property
    def summaries(self) -> list[Summary]:
        """Counts per process."""
        return [summarise(log) for log in self.logs]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Every event of that name, of all processes."""
        return [event for log in self.logs for event in log.events if event["event"] == name]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What rank 0 printed as JSON. Other text may follow on a line: torch's profiler writes there, too."""
        decoder = json.JSONDecoder()
        return [decoder.raw_decode(line)[0] for line in self.output.splitlines() if line.startswith("{")]

    def values(self, key: str) -> list[str]:
        """What followed ``key=`` in the output, in order."""
        return re.findall(rf"{key}=([-+.\w]+?)(?=\s|$|{key}=)", self.output)


def launch(
    script: Path, ranks: int, log: Path | None, *arguments: str, timeout: float = 120, **variables: str
) -> Result:
    """Run `script` on `ranks` devices; with `log`, the hook is on and logs there.

    The whole process group is killed after `timeout` seconds: a hang is a failure, not a wait.
    """
    environment = {**os.environ, **variables}
    if log is not None:
        # Every segment with every communicator, unless a test says otherwise: that is what most of them count.
        environment = {"SYMM_REGISTER_LOCAL": "all", **environment, "SYMM_REGISTER_HOOK": "1"}
        environment |= {"SYMM_REGISTER_LOG": str(log)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        [*command, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = -signal.SIGALRM
    logs = reader.read_directory(log) if log is not None and log.is_dir() else []
    # The launcher imports torch too, and logs; it has no rank. A compiler's processes have one, and use no device.
    return Result(status, output, [one for one in logs if one.rank is not None and _used_a_device(one)])


def _used_a_device(log: reader.ProcessLog) -> bool:
    return any("device" in event for event in log.events)

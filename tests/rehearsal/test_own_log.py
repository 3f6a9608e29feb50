"""Rules that a rehearsal saw broken, and hangs that it ended, are in the log: the audit names them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.audits import FINDINGS, Audit
from support.processes import Finished
from support.rehearsal import RULES_BROKEN, run_command, write_job

HANGS = 87
# Rank 1 deregisters what nobody registered; then it goes on, or is killed.
BREAKS = """
import ctypes, os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from common import RANK, start
device = start()
dist.all_reduce(torch.ones(4, device=device))
torch.cuda.synchronize()
log = next(pathlib.Path(os.environ["SYMM_REGISTER_LOG"]).glob(f"*.{os.getpid()}.jsonl"))
deadline = time.monotonic() + 30
while b"communicator.group" not in log.read_bytes() and time.monotonic() < deadline:
    time.sleep(0.05)
if RANK == 1:
    communicator = dist.group.WORLD._get_backend(device)._comm_ptr()
    ctypes.CDLL("libnccl.so.2").ncclCommDeregister(ctypes.c_void_p(communicator), ctypes.c_void_p(77))
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""

PIECES = """
import contextlib, os, time
import torch
import torch.distributed as dist
from common import RANK, WORLD, start

device = start()
pieces = [4, 2, 2, 0] if RANK == 2 else [2] * WORLD  # the mistake
with contextlib.suppress(dist.DistBackendError):
    dist.all_to_all_single(torch.empty(8, device=device), torch.ones(8, device=device), [2] * WORLD, pieces)
    torch.cuda.synchronize()
time.sleep(1)  # until all have been told
os._exit(0)
"""


def rehearse(log: Path, *job: str | Path, ranks: int, limit: float = 0, faults: str = "") -> Finished:
    """Run a job of several ranks as the command does."""
    env = {"TRACEHOOK_EMU_FAULTS": faults, "TRACEHOOK_EMU_WINDOW_TIMEOUT": "3"}
    return run_command(*job, devices=ranks, limit=limit, log=log, env=env)


def audit(log: Path) -> dict[str, Any]:
    """Return what the audit found."""
    return dict(json.loads(Audit(log, "--json").expect(FINDINGS).out))


@pytest.mark.parametrize("how", ["goes_on", "killed"])
def test_a_broken_rule_is_a_finding_about_the_rank_that_broke_it(tmp_path: Path, how: str) -> None:
    """With the rule, the call, the group and the time, also if the rank was killed at once."""
    job = write_job(tmp_path / "breaks.py", BREAKS)
    finished = rehearse(tmp_path / "log", "launch.py", "2", sys.executable, job, how, ranks=2)
    assert finished.status == RULES_BROKEN, finished.output
    told = audit(tmp_path / "log")
    (found,) = [finding for finding in told["findings"] if finding["rule"] == "rule-broken"]
    assert told["first_finding"]["rule"] == "rule-broken"
    assert found["ranks"] == [1]
    assert ".rank1." in found["file"]
    assert found["message"].startswith(
        "rank 1 broke rule L2: a handle that is not registered was deregistered: registration 0x4d, on group "
    )
    assert f"(communicator {found['comm']}; ranks 0, 1)" in found["message"]


def test_the_audit_names_the_hang_that_the_command_named(tmp_path: Path) -> None:
    """With the groups that the logs know, and behind what the calls tell: who is wrong."""
    job = ("launch_and_end.py", "4", "60", "SIGTERM", "planted.py", "order", "1", "3")
    finished = rehearse(tmp_path / "log", *job, ranks=4, limit=3)
    assert finished.status == HANGS, finished.output
    mark = "rehearsal: hang: "
    lines = [line.removeprefix(mark) for line in finished.err.splitlines() if line.startswith(mark)]
    told = audit(tmp_path / "log")
    hangs = [each for each in told["findings"] if each["rule"] == "ranks-hung"]
    first = hangs[0]
    assert told["first_finding"]["rule"] == "rank-missing"
    assert first["message"].replace(" (group ", "|").split("|")[0] in lines[0]
    assert f"communicator {first['comm']} (group " in first["message"]
    assert len(hangs) == len(lines)


def test_of_messages_that_do_not_fit_the_rank_that_is_in_most_of_them_comes_first(tmp_path: Path) -> None:
    """Rank 2 sends other pieces than the others receive: they report it, and it made the mistake."""
    job = write_job(tmp_path / "pieces.py", PIECES)
    finished = rehearse(tmp_path / "log", "launch.py", "4", sys.executable, job, ranks=4, limit=20)
    assert finished.status == RULES_BROKEN, finished.output
    first = audit(tmp_path / "log")["first_finding"]
    assert (first["rule"], first["ranks"][0]) == ("rule-broken", 2), first
    assert first["message"].startswith("rank 2 sends "), first
    assert "; rank 2 takes part in 2 messages of this kind" in first["message"], first

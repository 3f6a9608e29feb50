"""Ranks that wait for each other end a rehearsal, which names them: `tracehook rehearse --hang-timeout`.

HANGS is the number of seeds, HANGS_FROM the first one.
"""

import importlib
import os
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from support.audits import Audit
from support.processes import Finished
from support.rehearsal import run_command, write_job

SEEDS = int(os.environ.get("HANGS", "4"))
FIRST = int(os.environ.get("HANGS_FROM", "0"))
RANKS = 8
FAULTS = ("skip", "order", "receive", "compute")
HANGS = 87


def told(finished: Finished) -> list[str]:
    """Return who waits for whom."""
    mark = "rehearsal: hang: "
    return [line.removeprefix(mark) for line in finished.err.splitlines() if line.startswith(mark)]


def test_a_job_that_is_told_to_end_hangs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks end one after the other, and who waits meanwhile waits for one that had to end."""
    looks: list[bool] = []
    command = importlib.import_module("tracehook.commands.rehearse")
    monkeypatch.setattr(command, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(command, "find_hang", lambda *_: looks.append((tmp_path / "told").exists()))
    job = (
        "import pathlib, signal, sys, time\n"
        "def end(*_): pathlib.Path('told').touch(); time.sleep(0.5); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); pathlib.Path('ready').touch(); time.sleep(60)\n"
    )

    def tell() -> None:
        while not (tmp_path / "ready").exists() or not looks:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(tmp_path)
    teller = threading.Thread(target=tell)
    teller.start()
    assert command._run([sys.executable, "-c", job], dict(os.environ), tmp_path, (0, 60), None) == (3, None)
    teller.join()
    assert looks
    assert not any(looks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_the_rank_that_the_others_wait_for_is_in_the_first_line(seed: int) -> None:
    """A skipped collective, two groups in the opposite order, a send without a receive, a rank that never comes."""
    chosen = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    rank = chosen.randrange(RANKS // 2 if fault == "receive" else 0, RANKS)
    step = chosen.choice(range(2, 5))
    finished = run_command(
        *("launch_and_end.py", str(RANKS), "90", "SIGTERM", "planted.py", fault, str(rank), str(step)),
        devices=RANKS,
        limit=15,
    )
    assert finished.status == HANGS, finished.output
    assert finished.orphans == 0, finished.output
    first = told(finished)[0]
    assert f"rank {rank} " in first, finished.output
    if fault == "compute":
        assert f"rank {rank} did not come, and waits in no other call" in first


SPLIT = """
import time
import torch, torch.distributed as dist
from common import RANK, start
device = start()
dist.all_reduce(torch.ones(4, device=device))
if RANK == 1:
    time.sleep(60)
dist.new_group([0, 2], device_id=device)
"""


def test_a_rank_that_does_not_come_to_where_a_group_is_made(tmp_path: Path) -> None:
    """NCCL waits there for all ranks of the parent, also for those that get no part of the new one."""
    job = write_job(tmp_path / "split.py", SPLIT)
    finished = run_command("launch_and_end.py", "3", "60", "SIGTERM", job, devices=3, limit=3)
    assert finished.status == HANGS, finished.output
    (line,) = told(finished)
    assert line.startswith("ranks 0, 2 wait in ncclCommSplit (split 1) of communicator"), finished.output
    assert "rank 1 did not come, and waits in no other call" in line


def test_a_rank_that_does_not_come_to_a_scope(tmp_path: Path) -> None:
    """NCCL knows nothing of that wait; the logs do, which are being written."""
    finished = run_command(
        *("launch_and_end.py", "2", "60", "SIGTERM", "apart.py", "does_not_come_for_long"),
        devices=2, limit=5, log=tmp_path / "log", env={"TEST_GO": str(tmp_path / "never")},
    )  # fmt: skip
    assert finished.status == HANGS, finished.output
    (line,) = told(finished)
    assert line.startswith("rank 0 waits in an agreement of tracehook of group"), finished.output
    assert line.endswith("; rank 1 did not come")
    assert "rank 0 waits in an agreement of tracehook, and rank 1 did not come there" in Audit(tmp_path / "log").out


MADE = """
import os, sys, time
import torch, torch.distributed as dist
from common import RANK
torch.cuda.set_device(RANK)
store = dist.FileStore(os.environ["TEST_STORE"], 3)
dist.init_process_group("nccl", store=store, rank=RANK, world_size=3)  # no device: a communicator at the first call
group = None
if sys.argv[1] == "part":
    dist.all_reduce(torch.ones(4, device="cuda"))
    group = dist.new_group([1, 2])
if RANK == 2:
    time.sleep(60)
if group is None or RANK == 1:
    dist.all_reduce(torch.ones(4, device="cuda"), group=group)
dist.barrier()
"""


@pytest.mark.parametrize(
    ("whose", "waiting", "missing"),
    [("all", "ranks 0, 1 wait", "rank 2"), ("part", "rank 1 waits", "rank 1 of this communicator")],
)
def test_a_rank_that_does_not_come_to_a_first_call(whose: str, waiting: str, missing: str, tmp_path: Path) -> None:
    """The first call of a group makes its communicator, and NCCL waits there for ever. The audit names the rank."""
    job = write_job(tmp_path / "made.py", MADE)
    finished = run_command(
        *("launch_and_end.py", "3", "60", "SIGTERM", job, whose),
        devices=3, limit=5, log=tmp_path / "log", env={"TORCH_DIST_USE_NCCL2": "0"},  # which makes one at once
    )  # fmt: skip
    assert finished.status == HANGS, finished.output
    line, *others = told(finished)
    assert re.match(rf"{waiting} in ncclCommInitRank\w* of communicator", line), finished.output
    assert line.endswith(f"; {missing} did not come"), finished.output
    assert not [other for other in others if "rank 1 did not come, and waits in no other call" in other]
    last = Audit(tmp_path / "log").out.splitlines()[-1]
    assert "rank 2 did not come" in last, last


NAMED = """
import ctypes, time
from raw import FLOAT, RANK, SUM, WORLD, allocate, cuda, exchanged, must, nccl

class Config(ctypes.Structure):  # ncclConfig_t, as far as its name
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint)]
    _fields_ += [(name, ctypes.c_int) for name in ("blocking", "cluster", "least", "most")]
    _fields_ += [("net", ctypes.c_char_p), *((name, ctypes.c_int) for name in ("share", "traffic"))]
    _fields_ += [("name", ctypes.c_char_p)]

must(cuda.cudaSetDevice(RANK))
config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22809, 1, name=b"tp")
comm, unique = ctypes.c_void_p(), exchanged("named", nccl.ncclGetUniqueId)
must(nccl.ncclCommInitRankConfig(ctypes.byref(comm), WORLD, unique, RANK, ctypes.addressof(config)))
if RANK == 0:
    memory = ctypes.c_void_p(allocate(4))
    must(nccl.ncclAllReduce(memory, memory, ctypes.c_size_t(4), FLOAT, SUM, comm, None))
    cuda.cudaDeviceSynchronize()
time.sleep(60)
"""


def test_a_communicator_that_has_a_name_is_called_by_it(tmp_path: Path) -> None:
    """That is commName of ncclConfig_t; torch 2.11 leaves it empty."""
    job = write_job(tmp_path / "named.py", NAMED)
    finished = run_command("launch_and_end.py", "2", "60", "SIGTERM", job, devices=2, limit=2)
    assert finished.status == HANGS, finished.output
    assert re.search(r"of communicator [0-9a-f]{16}, group tp \(ranks 0, 1\) for", told(finished)[0]), finished.output

"""``tracehook tune``: a table that the policy can use, and ranks that fail by name."""

import ast
import contextlib
import os
import re
import signal
import subprocess
import time
from importlib import metadata
from pathlib import Path

import pytest
from support.audits import Audit
from support.processes import SCRIPTS, run
from support.rehearsal import Rehearsal, rehearse, run_command

from tracehook.tuning.table import Row, load
from tracehook.versions import nccl_name, of_torch

QUICK = ("--samples", "3", "--largest", "4KiB", "--budget", "0")


def tune(*arguments: str, fault: str = "none", ranks: int = 2, folder: Path) -> Rehearsal:
    """Run the command as a rank of a job."""
    job = ("tuned.py", fault, "tune", *QUICK, "--out", str(folder / "tuned.json"), *arguments)
    return rehearse(*job, ranks=ranks, log=folder / "log", timeout=90)


def test_the_table_has_every_collective_size_and_way(tmp_path: Path) -> None:
    """Times above 0, for the world and the groups that were named; and the page stands beside the table."""
    ran = tune("--groups", "tp=2", "--largest", "2KiB", ranks=4, folder=tmp_path).assert_good()
    table = load(tmp_path / "tuned.json")
    wanted = {
        Row(operation, "bfloat16", graph, ranks, 1)
        for operation in ("all_reduce", "all_gather", "reduce_scatter")
        for graph in (True, False)
        for ranks in (2, 4)
    }
    assert set(table.rows) == wanted
    assert all([point.nbytes for point in points] == [1024, 2048] for points in table.rows.values())
    assert table.machine.nccl == nccl_name(of_torch(metadata.version("torch")).nccl)
    assert table.digest in ran.finished.out
    assert "all_reduce, bfloat16, 4 ranks" in ran.finished.out
    page = (tmp_path / "tuned.html").read_text()
    assert page.count("all_reduce, bfloat16, 4 ranks on 1 host, in a CUDA graph") == 1
    assert Audit(tmp_path / "log").status == 0


@pytest.mark.parametrize("budget", [0, 60])
def test_undecided_sizes_are_measured_again_on_all_ranks_alike(tmp_path: Path, budget: int) -> None:
    """One size stays undecided, and of the others noise decides. Without time none is measured more than twice."""
    only = ("--operations", "all_gather", "--mode", "eager")
    ran = tune("--budget", str(budget), *only, fault="counts", folder=tmp_path).assert_good()
    counts = re.findall(r"measured (\{.*?\})", ran.output)
    assert len(counts) == 2, ran.output
    assert counts[0] == counts[1]
    assert (max(ast.literal_eval(counts[0]).values()) > 2) is (budget > 0)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies", "rank 1 did not come within"),
        ("raises", "rank 1 could not go on: all_reduce of 4096 bytes of bfloat16, in a graph, 2 ranks: ValueError: a"),
        ("wrong", "all_reduce of 4096 bytes of bfloat16, in a graph, 2 ranks' failed on rank 1: wrong results: part 0"),
    ],
)
def test_the_others_name_the_rank_that_fails(tmp_path: Path, fault: str, told: str) -> None:
    """No table is written, and nobody waits for ever."""
    ran = tune("--timeout", "10" if fault == "dies" else "60", fault=fault, folder=tmp_path)
    assert ran.status not in (0, 86), ran.output
    lines = [line for line in ran.finished.err.splitlines() if line.startswith("tracehook tune: rank 0 ends: ")]
    assert len(lines) == 1, ran.output
    assert told in lines[0], ran.output
    assert not (tmp_path / "tuned.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--operations", "all_to_all"], "--operations 'all_to_all': expected all_reduce, all_gather, reduce_scatter"),
        (["--dtypes", "complex64"], "--dtypes 'complex64': expected bfloat16"),
        (["--mode", "both"], "--mode 'both': expected graph, eager"),
        (["--largest", "much"], "--largest 'much': expected bytes"),
        (["--groups", "tp"], "--groups 'tp': expected a name and a number of ranks"),
        (["--ranks", "3"], "3 ranks, but this machine has 2 GPUs"),
        (["--ranks", "1"], "one rank has nobody to exchange with"),
        (["--groups", "tp=3"], "--groups tp=3: 2 ranks are no multiple of 3"),
        (["--smallest", "8KiB", "--largest", "4KiB"], "no power of two lies between --smallest 8KiB and --largest 4Ki"),
        (["--out", "table.html"], "--out table.html: the page takes that name"),
        (["--out", "no/such/folder/tuned.json"], "--out no/such/folder/tuned.json: no/such/folder/tuned.json: No such"),
        (["--out", "."], "is there, and is no regular file"),
        (["--out", ""], "is there, and is no regular file"),
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], told: str) -> None:
    """What was seen and what was expected; nothing starts."""
    ran = run_command(SCRIPTS / "tracehook", "tune", *arguments, devices=2)
    assert ran.status == 2
    (line,) = [line for line in ran.err.splitlines() if line.startswith("tracehook tune:")]
    assert told in line


@pytest.mark.parametrize("command", [["tracehook"], ["torchrun", "--nproc-per-node", "1", "-m", "tracehook"]])
def test_without_a_gpu_it_says_so(command: list[str]) -> None:
    """One line, alone and under a launcher."""
    ran = run([SCRIPTS / command[0], *command[1:], "tune"], {"PET_STANDALONE": "1"})  # torchrun's port may be taken
    assert ran.status != 0
    (line,) = [line for line in ran.err.splitlines() if line.startswith("tracehook tune:")]
    assert "no GPU on this machine" in line


def test_a_second_run_in_one_process_reads_nothing_of_the_first(tmp_path: Path) -> None:
    """Its store may be the same, and keys of the first run stand there."""
    tune("--mode", "eager", "--operations", "reduce_scatter", fault="twice", folder=tmp_path).assert_good()
    assert set(load(tmp_path / "tuned.json").rows) == {Row("all_gather", "bfloat16", False, 2, 1)}


def test_names_and_repeated_arguments_change_no_row(tmp_path: Path) -> None:
    """A group may be called `world`, or like another one; what is named twice is measured once."""
    named = ("--groups", "world=2", "--groups", "world=4", "--mode", "eager,eager", "--operations", "all_gather")
    tune(*named, ranks=4, folder=tmp_path).assert_good()
    rows = load(tmp_path / "tuned.json").rows
    assert {kind.ranks for kind in rows} == {2, 4}
    assert all(len(points) == 3 for points in rows.values())


def _windows(log: Path) -> int:
    """Return how many processes have registered a window, as far as their logs say."""
    return sum("register.window" in file.read_text() for file in log.glob("*.jsonl"))


def test_control_c_ends_it_without_a_stack_trace(tmp_path: Path) -> None:
    """Exit status 130, all processes end, and there is no table. Without a launcher it starts one for each device."""
    tune_for_long = [str(SCRIPTS / "tracehook"), "tune", "--samples", "5000", "--out", str(tmp_path / "t.json")]
    command = ["rehearse", "--devices", "2", "--log", str(tmp_path / "log"), "--", *tune_for_long]
    with (tmp_path / "told").open("w") as told:
        started = subprocess.Popen(
            [SCRIPTS / "tracehook", *command],
            stdout=told,
            stderr=told,
            env=os.environ | {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
            start_new_session=True,
            # Of a job in the background SIGINT is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            end = time.monotonic() + 60
            # A window of each rank: both are measuring, or about to.
            while _windows(tmp_path / "log") < 2 and time.monotonic() < end:
                time.sleep(0.2)
            time.sleep(1)
            os.killpg(started.pid, signal.SIGINT)
            assert started.wait(60) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "told").read_text()
    assert not (tmp_path / "t.json").exists()

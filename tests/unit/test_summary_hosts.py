"""``tracehook summary`` of very many processes: their sum, and the processes to look at."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracehook.commands import app

ALLOC = {"event": "segment.alloc", "seq": 1, "t_ns": 2, "device": 0, "segment": 1}
REFUSED = {"event": "register.local", "seq": 2, "comm": "abc", "comm_id": 1, "ok": False, "error": 3}
END = {"event": "trace.end", "t_ns": 9, "dropped": 0}


def write(directory: Path, rank: int, of_host: int, *events: dict[str, object]) -> None:
    """Write the log of a rank, in the folder of its host."""
    host = f"node{rank // of_host}"
    (directory / host).mkdir(exist_ok=True)
    begin = {"event": "trace.begin", "schema": "1.2", "t_ns": 1, "rank": rank, "pid": 1000 + rank, "host": host}
    lines = (json.dumps(event) + "\n" for event in (begin, *events))
    (directory / host / f"job.rank{rank}.{host}.{1000 + rank}.jsonl").write_text("".join(lines))


def summary(*arguments: object) -> list[str]:
    """Return the lines that the command prints."""
    done = CliRunner().invoke(app, ["summary", *map(str, arguments)], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_very_many_processes_have_one_row(tmp_path):
    """Their sum, if nobody has to look at one of them."""
    for rank in range(80):
        write(tmp_path, rank, 8, *[ALLOC] * (3 if rank == 42 else 2), END)
    lines = summary(tmp_path)
    assert lines[0] == "tracehook: 80 processes on 10 hosts"
    assert [line for line in lines if re.match(r"all|node", line)] == ["all 80 161 0 0 0 0 0 0 0 0 0 0 ended"]
    assert "--ranks shows each process" in lines


def test_processes_in_trouble_are_named(tmp_path):
    """Refused calls first, lost events, and logs without an end where others have one."""
    events = {7: [REFUSED, END], 30: [ALLOC], 66: [{"event": "trace.end", "t_ns": 9, "dropped": 5}]}
    for rank in range(80):
        write(tmp_path, rank, 8, *events.get(rank, [ALLOC, END]))
    rows = [line.split() for line in summary(tmp_path) if re.match(r"node", line)]
    assert [row[:3] for row in rows] == [["node0", "7", "1007"], ["node8", "66", "1066"], ["node3", "30", "1030"]]
    assert [row[-1] for row in rows] == ["ended", "lost", "open"]


@pytest.mark.parametrize(("last", "advised"), [([END], True), ([], False)])
def test_only_a_job_that_ended_well_gets_advice_about_its_memory(tmp_path, last, advised):
    """Of a job that hung or was killed, it would lead away from the cause."""
    pending = {
        "event": "communicator.pending",
        "seq": 2,
        "comm": "abc",
        "comm_id": 1,
        "ranks": 2,
        "at_calls": True,
        "one_host": True,
    }
    for rank in range(2):
        write(tmp_path, rank, 2, ALLOC | {"memory_kind": "cudaMalloc"}, pending, *([END] if rank == 0 else last))
    assert any("set SYMM_REGISTER_MEMORY=vmm" in line for line in summary(tmp_path)) == advised


def test_very_many_in_trouble_are_not_all_shown(tmp_path):
    """How many more there are is said."""
    for rank in range(100):
        write(tmp_path, rank, 2, *[ALLOC] * (rank + 1), REFUSED, END)
    lines = summary(tmp_path)
    assert "and 84 more to look at; --ranks shows each process" in lines
    assert sum(line.startswith("node") for line in lines) == 16


def test_each_process_has_a_row_if_there_are_few_or_that_is_wanted(tmp_path):
    """Up to 64, or with --ranks; JSON has each anyway."""
    few, many = (tmp_path / name for name in ("few", "many"))
    for directory, ranks, of_host in ((few, 64, 8), (many, 70, 8)):
        directory.mkdir()
        for rank in range(ranks):
            write(directory, rank, of_host, ALLOC, END)
    for lines, ranks in ((summary(few), 64), (summary("--ranks", many), 70)):
        assert lines[0] == f"tracehook: {ranks} processes"
        assert sum(bool(re.match(r"\d+ 1\d\d\d 1 0", line)) for line in lines) == ranks
    assert summary(many)[0] == "tracehook: 70 processes on 9 hosts"
    assert len(json.loads("\n".join(summary("--json", many)))["processes"]) == 70


def test_a_group_of_all_ranks_is_kept_once(tmp_path):
    """Each log names all its members: of very many ranks that would not fit into memory."""
    named = {"event": "communicator.group", "t_ns": 3, "comm": "ab", "group": "0", "desc": None, "members": [0, 1, 2]}
    for rank in range(3):
        write(tmp_path, rank, 1, ALLOC, named, END)
    assert "groups: 0 (ranks 0, 1, 2)" in summary(tmp_path)

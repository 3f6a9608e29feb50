"""``tracehook watch`` of a job on several hosts: a row for each host, and the ranks that somebody should look at."""

import importlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import watched
from support.processes import python

from tracehook.audit.live import Follower
from tracehook.audit.live_process import QUIET_AFTER
from tracehook.commands import watch_table
from tracehook.commands.watch_table import hosts_of

RANKS_OF_HOST = 4
WALL_NS = 10**18  # the wall clock, which stands still; long ago, so that all files are new
ALLOC = {"event": "segment.alloc", "seq": 1, "t_ns": 2 * 10**9, "device": 0, "total": 1 << 20}
REFUSED = {"event": "register.local", "seq": 2, "comm": "abc", "comm_id": 1, "ok": False, "error": 3}
END = {"event": "trace.end", "t_ns": 3 * 10**9, "dropped": 0}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Return the clock of the followers, which the test turns; the wall clock stands."""
    return watched.stop_wall_clock(monkeypatch, WALL_NS / 1e9)


class Job:
    """The logs and rings of a job that runs, in a folder for each host."""

    def __init__(self, directory: Path, hosts: int, of_each: int = RANKS_OF_HOST) -> None:
        self.directory = directory
        self.clock = watched.Clock()
        self.logs: list[Path] = []
        for rank in range(hosts * of_each):
            host = f"node{rank // of_each}"
            (directory / host).mkdir(exist_ok=True)
            path = directory / host / f"job.rank{rank}.{host}.{100 + rank}.jsonl"
            begin = {"event": "trace.begin", "schema": "1.2", "t_ns": 1, "time": "2026-11-21T14:28:11+00:00"}
            path.write_text(json.dumps(begin | {"rank": rank, "pid": 100 + rank, "host": host}) + "\n")
            self.logs.append(path)
            self.say(rank, ALLOC)
            self.ring(rank)

    def say(self, rank: int, *events: dict[str, object]) -> None:
        """Let a rank log something."""
        with self.logs[rank].open("a") as file:
            file.write("".join(json.dumps(event) + "\n" for event in events))

    def ring(self, rank: int, waiting: int = 0, looked_s: float = 1.0) -> None:
        """Write a rank's ring: events that wait in it, and when its process last looked, by its own clock."""
        looked_ns = int(1e9 * looked_s)
        head = watched.ring_header(1 + waiting, 1, looked_ns=looked_ns, epoch_ns=WALL_NS - looked_ns, pid=100 + rank)
        self.logs[rank].with_suffix(".ring").write_bytes(head + bytes(64 * 96))

    def later(self, follower: Follower, seconds: float, *but: int) -> None:
        """Let time go by in which all ranks but these look at their rings, and look again."""
        self.clock.now += seconds
        for rank in range(len(self.logs)):
            if rank not in but:
                self.ring(rank, looked_s=self.clock.now)
        follower.look()

    def follow(self) -> Follower:
        """Look for the first time."""
        follower = Follower(self.directory, self.clock)
        follower.look()
        return follower


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job of three hosts with four ranks each."""
    return Job(tmp_path, 3)


def lines_of(follower: Follower, height: int | None = None, width: int = 200, by_host: bool = True) -> list[str]:
    """Return the picture as text."""
    return watched.rendered(follower, width, height, by_host).splitlines()


def rows_of(follower: Follower, height: int | None = None) -> list[str]:
    """Return how the rows of the table begin, without the sum: up to the state."""
    lines = [line for line in lines_of(follower, height) if " MiB" in line and not line.lstrip().startswith("all ")]
    return [" ".join(line.split(" MiB")[0].split()[:-2]) for line in lines]


def test_each_host_has_a_row(job):
    """With its ranks, how many of them are in its worst state, and the sums of its columns; the sum of all is first."""
    follower = job.follow()
    title, _, _, everyone, *rows = lines_of(follower)
    assert title.endswith("12 processes on 3 hosts: 12 running")
    assert everyone.split()[:4] == ["all", "12", "12", "MiB"]
    assert [row.split()[:6] for row in rows] == [
        ["node0", "0-3", "4", "running", "4", "4"],
        ["node1", "4-7", "4", "running", "4", "4"],
        ["node2", "8-11", "4", "running", "4", "4"],
    ]


def test_one_host_has_a_row_for_each_process(tmp_path):
    """As has a job on several hosts if that is wanted (`--ranks`)."""
    (tmp_path / "one").mkdir()
    (tmp_path / "three").mkdir()
    one, three = Job(tmp_path / "one", 1).follow(), Job(tmp_path / "three", 3).follow()
    assert [line.split()[0] for line in lines_of(one)[4:]] == [str(rank) for rank in range(4)]
    assert [line.split()[0] for line in lines_of(three, by_host=False)[4:]] == [str(rank) for rank in range(12)]


def test_hosts_in_trouble_come_first(job):
    """Ranks that are stuck, then silent, without an end, with warnings; each host in trouble has its ranks below it."""
    job.say(1, REFUSED)
    follower = job.follow()
    assert rows_of(follower) == [
        "node0 0-3 4 running",
        "rank 1 pid 101 running",
        "node1 4-7 4 running",
        "node2 8-11 4 running",
    ]
    job.later(follower, QUIET_AFTER + 1, 9, 10)
    assert rows_of(follower) == [
        "node2 8-11 2 silent 6 s", "rank 9 pid 109 silent 6 s", "rank 10 pid 110 silent 6 s",
        "node0 0-3 4 quiet 6 s", "rank 1 pid 101 quiet 6 s", "node1 4-7 4 quiet 6 s",
    ]  # fmt: skip
    for _ in range(3):
        job.ring(5, waiting=7, looked_s=job.clock.now)
        job.later(follower, QUIET_AFTER, 5, 9, 10)
    assert [row.split(" ")[0] for row in rows_of(follower) if row.startswith("node")] == ["node1", "node2", "node0"]
    assert next(row for row in rows_of(follower) if row.startswith("rank 5")).startswith("rank 5 pid 105 s")


def test_more_ranks_in_trouble_come_before_fewer(job):
    """Of hosts with the same trouble; numbers in names count as numbers where there is none."""
    follower = job.follow()
    job.later(follower, QUIET_AFTER + 1, 0, 8, 9, 10)
    assert [host.name for host in hosts_of(follower.processes.values(), follower.now)] == ["node2", "node0", "node1"]
    (job.directory / "more").mkdir()
    many = Job(job.directory / "more", 12, 1).follow()
    names = [host.name for host in hosts_of(many.processes.values(), many.now)]
    assert names == [f"node{number}" for number in range(12)]


@pytest.mark.parametrize("height", range(12, 60, 3))
@pytest.mark.parametrize("silent", [(), (5,), (0, 1, 2, 3, 7, 21), tuple(range(40))])
def test_the_table_fits_the_terminal(tmp_path, height, silent):
    """Whatever its height and however many ranks are in trouble: what is not shown is counted."""
    job = Job(tmp_path, 10)
    follower = job.follow()
    job.later(follower, QUIET_AFTER + 1, *silent)
    lines = lines_of(follower, height)
    assert len(lines) <= height
    rows = rows_of(follower, height)
    hosts = [row for row in rows if row.startswith("node")]
    more = [line for line in lines if line.startswith("and ")]
    troubled = len({rank // RANKS_OF_HOST for rank in silent})
    assert rows, lines
    assert sum("silent" in row for row in hosts) == min(troubled, len(hosts)), "those in trouble come first"
    if len(hosts) == 10:
        assert more == []
        return
    left = 10 - len(hosts)
    what = "all well" if troubled <= len(hosts) else f"{troubled - len(hosts)} of them in trouble"
    assert more == [f"and {left} more host{'s' * (left > 1)}, {what}"]


def test_a_high_terminal_shows_more_ranks_than_a_low_one(tmp_path):
    """Of each host in trouble; hosts that are well come before the third rank of a host."""
    job = Job(tmp_path, 10, 16)
    follower = job.follow()
    job.later(follower, QUIET_AFTER + 1, *range(16))
    shown = {
        height: sum(row.startswith("rank") for row in rows_of(follower, height)) for height in (11, 12, 20, 26, 60)
    }
    assert list(shown.values()) == sorted(shown.values())
    assert (shown[11], shown[12], shown[20], shown[60]) == (1, 2, 2, 8)
    assert "and 9 more hosts, all well" in lines_of(follower, 12)


def test_a_ring_on_its_own_host_is_no_sign_of_an_end(tmp_path):
    """Logs on a network file system name their rings, which only their host can read: a quiet process is quiet."""
    begin = {"event": "trace.begin", "schema": "1.5", "t_ns": 1, "rank": 0, "pid": 7, "ring": "/tmp/a.ring"}
    for host in ("far", "away"):
        (tmp_path / f"{host}.jsonl").write_text(json.dumps(begin | {"host": host}) + "\n")
    follower = Follower(tmp_path, clock := watched.Clock())
    follower.look()
    clock.now += QUIET_AFTER + 1
    follower.look()
    assert "2 quiet" in lines_of(follower)[0]


def test_logs_that_name_no_host(tmp_path: Path) -> None:
    """They are taken to be of one host."""
    for rank in range(2):
        begin = {"event": "trace.begin", "schema": "1.2", "t_ns": 1, "rank": rank, "pid": rank}
        (tmp_path / f"{rank}.jsonl").write_text(json.dumps(begin) + "\n")
    follower = Follower(tmp_path)
    follower.look()
    assert follower.host_count == 1


# --- in a pipe ---


def said(follower: Follower, job: Job, *steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    """Return what the watch writes into a pipe: at its first look, and as these ranks fall silent."""
    watch = importlib.import_module("tracehook.commands.watch")

    def looks(*_: object) -> Iterator[None]:
        yield
        for silent in steps:
            job.later(follower, QUIET_AFTER + 1, *silent)
            yield

    monkeypatch.setattr(watch, "_looks", looks)
    watch._print_lines(follower, 1.0, keep=False)
    return str(capsys.readouterr().out)


def test_a_host_that_comes_into_trouble_is_one_line(job, monkeypatch, capsys):
    """When it does, and not at each look; a warning names the host of its rank."""
    job.say(2, REFUSED)
    follower = job.follow()
    text = said(follower, job, (), (4, 5, 7), (4, 5, 7), monkeypatch=monkeypatch, capsys=capsys)
    assert "12 processes on 3 hosts: 12 running" in text
    assert text.count("node1: ranks 4, 5, 7 silent 6 s, of 4 processes\n") == 1
    assert text.count("node") == 2
    assert "rank 2 on node0: NCCL refused to register" in text


def test_very_many_are_not_told_one_by_one(tmp_path, monkeypatch, capsys):
    """Some of them are, and how many more there are."""
    job = Job(tmp_path, 30, 1)
    for rank in range(30):
        job.say(rank, REFUSED)
    follower = job.follow()
    text = said(follower, job, tuple(range(30)), monkeypatch=monkeypatch, capsys=capsys)
    assert (text.count("NCCL refused"), text.count("silent 6 s, of")) == (20, 8)
    assert "and 10 more processes with a new warning\n" in text
    assert "and 22 more hosts like these\n" in text


def test_hosts_in_json(job):
    """Those in trouble first, with their ranks and the sums of the columns."""
    follower = job.follow()
    job.later(follower, QUIET_AFTER + 1, 8)
    hosts = watch_table.as_json(follower)["hosts"]
    assert [(host["host"], host["ranks"], host["in_trouble"]) for host in hosts] == [
        ("node2", [8, 9, 10, 11], 1),
        ("node0", [0, 1, 2, 3], 0),
        ("node1", [4, 5, 6, 7], 0),
    ]
    assert (hosts[0]["states"]["silent"], hosts[0]["states"]["quiet"], hosts[0]["bytes"]) == (1, 3, 4 << 20)


# --- very many logs ---


@contextmanager
def turning(clock: watched.Clock, step: float) -> Iterator[None]:
    """Let the clock go on whenever somebody asks for the time."""

    def ask(self: watched.Clock) -> float:
        self.now += step
        return self.now

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(clock), "__call__", ask)
        yield


def test_a_look_without_time_for_all_logs_is_gone_on_with(job):
    """Each look asks for some of the logs, in turn, and none is left out; what was not looked at keeps its state."""
    follower = job.follow()
    job.say(11, ALLOC)
    looks = 0
    with turning(job.clock, 0.1):  # for each log asked for
        while follower.processes["node2/job.rank11.node2.111.jsonl"].summary.segments == 1:
            follower.look(1.0)
            looks += 1
            assert looks < 12
            assert set(states(follower)) == {"running"}
    assert looks > 1


def states(follower: Follower) -> list[str]:
    """Return the states of all processes."""
    return [process.state(follower.now)[0] for process in follower.processes.values()]


def test_logs_that_were_never_read_come_first(tmp_path):
    """So the picture has all ranks soon, while large logs are still read."""
    job = Job(tmp_path, 3)
    for rank in range(12):
        job.say(rank, *[ALLOC] * 6000)
    follower = Follower(tmp_path, job.clock)
    looks = 0
    while len(follower.processes) < 12:
        follower.look(0)
        looks += 1
    assert follower.behind
    assert (looks, follower.has_caught_up) == (12, False)
    follower.look()
    assert (follower.behind, follower.has_caught_up) == (0, True)


def test_the_end_is_seen_only_when_all_logs_were_looked_at(tmp_path):
    """A look that has come to some ended logs does not take them for the job."""
    job = Job(tmp_path, 2)
    job.say(0, END)
    follower = Follower(tmp_path, job.clock)
    follower.look(0)
    assert not follower.is_whole
    while not follower.is_whole:
        follower.look(0)
    assert (len(follower.processes), follower.all_ended) == (8, False)


def test_no_more_files_are_open_than_a_process_may_have(tmp_path):
    """With a limit far below the number of logs all are read, looked at again, and nothing is refused."""
    Job(tmp_path, 20)
    code = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
from tracehook.audit.live import Follower
follower = Follower(Path(sys.argv[1]))
for _ in range(3):
    follower.look()
print(len(follower.processes), follower.skipped)
"""
    assert python(code, str(tmp_path)).out == "80 {}\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 16


def test_a_later_look_opens_no_log_that_has_not_grown(job, monkeypatch):
    """Of all folders: only rings are opened, each once."""
    follower = job.follow()
    opened = Mock(wraps=os.open)
    monkeypatch.setattr(os, "open", opened)
    job.clock.now += 1
    follower.look()
    assert sorted(str(call.args[0]) for call in opened.mock_calls) == sorted(
        str(log.with_suffix(".ring")) for log in job.logs
    )

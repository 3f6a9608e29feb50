"""Who waits for whom in a job that runs, as ``tracehook watch`` tells it: rings of real jobs, as if they lived."""

import importlib
import re
import time
from pathlib import Path

import pytest
from audit.goldens import DIRECTORY, unpack
from support import watched
from support.processes import python

from tracehook.audit import live_waits
from tracehook.audit.live import Follower
from tracehook.commands import watch_table
from tracehook.log.calls import HEAD_BYTES, Call
from tracehook.log.growing import GrowingDirectory
from tracehook.log.ring import read_header, read_heads, read_slots
from unit.test_blame import ALL_REDUCE, SECOND, counted


def _follow(name: str, scratch: Path, monkeypatch: pytest.MonkeyPatch, after: float, of_host=0) -> tuple[Follower, str]:
    """Look at a job `after` seconds after its processes last looked at their rings. `of_host`: ranks of each host."""
    directory = unpack(DIRECTORY / name, scratch)
    for log in directory.glob("*.jsonl") if of_host else ():
        host = f"node{int(log.name.split('.rank')[1].split('.')[0]) // of_host}"
        log.write_text(re.sub('"host": ?"[^"]*"', f'"host":"{host}"', log.read_text(), count=1))
    headers = [read_header(path) for path in directory.glob("*.ring")]
    now = max(header.epoch_ns + header.looked_ns for header in headers) / 1e9 + after
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(live_waits, "_SHARE", 0)  # else a slow machine looks less often
    follower = Follower(directory)
    follower.look()
    return follower, watched.rendered(follower, 400)


def test_who_did_not_come(tmp_path, monkeypatch):
    """How many calls each rank made, and who waits in which call for whom and how long; also of a missing send."""
    _, text = _follow("rank-missing-skipped", tmp_path, monkeypatch, 2.0)
    below = [line for line in text.splitlines() if " wait" in line]
    assert below[0].startswith("group tp_2: rank 5 made 11 calls; rank 4 made 12 calls; ")
    assert below[0].endswith("rank 4 waits for rank 5 in all_reduce of 16,384 float32, sum, for 6 s")
    assert below[-1] == "ranks wait in 3 more calls"  # because of that
    _, text = _follow("rank-missing-receive", tmp_path / "receive", monkeypatch, 2.0)
    assert " waits for " in text


@pytest.mark.parametrize("after", [0.0, 60.0], ids=["ahead for less than 5 s", "killed a minute ago"])
def test_what_is_no_hang(tmp_path, monkeypatch, after):
    """A rank that is ahead for a moment waits for nobody; nor does one that does not run any more."""
    follower, text = _follow("rank-missing-skipped", tmp_path, monkeypatch, after)
    assert follower.hangs == []
    assert "wait" not in text


def test_a_hang_is_one_line_in_a_pipe(tmp_path, monkeypatch, capsys):
    """It is said when it begins, and not again at each look."""
    follower, _ = _follow("rank-missing-skipped", tmp_path, monkeypatch, 2.0)
    watch = importlib.import_module("tracehook.commands.watch")
    monkeypatch.setattr(watch, "_looks", lambda *_: iter([None] * 3))
    watch._print_lines(follower, 1.0, keep=False)
    said = capsys.readouterr().out
    assert said.count("rank 4 waits for rank 5") == 1


def test_of_very_many_ranks_who_waits_for_nobody_is_the_cause(tmp_path, monkeypatch):
    """All chains of ranks are gone through for fewer ranks only; the rank that is named is the same."""
    few, _ = _follow("rank-missing-computes", tmp_path / "few", monkeypatch, 2.0)
    monkeypatch.setattr(live_waits, "_MOST_BLAMED", 1)
    many, _ = _follow("rank-missing-computes", tmp_path / "many", monkeypatch, 2.0)
    assert few.hangs[0].is_cause
    assert many.hangs[0] == few.hangs[0]
    few_named, many_named = (
        {rank for hang in each.hangs if hang.is_cause for rank in hang.missing} for each in (few, many)
    )
    assert few_named == many_named


@pytest.mark.parametrize("only", ["0", "1", "2", "3", "6", "7"])
def test_the_cause_comes_first_whoever_waits_longest(only, tmp_path, monkeypatch):
    """Of a chain, those at its end may wait for five seconds before those who wait for the cause itself do."""
    monkeypatch.setattr(
        live_waits.LiveWaits, "_still", lambda _, name, __: 5.5 if f".rank{only}." in name else 4.5, raising=True
    )
    follower, _ = _follow("rank-missing-skipped", tmp_path, monkeypatch, 2.0)
    assert follower.hangs[0].missing == ["rank 5"]
    assert follower.hangs[0].is_cause


def test_a_hang_that_goes_on_is_not_worked_out_again(tmp_path, monkeypatch):
    """Nothing moved: only the time for which ranks wait is another one."""
    follower, _ = _follow("rank-missing-skipped", tmp_path, monkeypatch, 2.0)
    before = follower.hangs
    monkeypatch.setattr(live_waits, "_hangs", None)
    monkeypatch.setattr(follower, "_clock", lambda: follower.now + 2.5)
    follower.look()
    assert [hang._replace(seconds=0) for hang in follower.hangs] == [hang._replace(seconds=0) for hang in before]
    assert [round(new.seconds - old.seconds, 3) for new, old in zip(follower.hangs, before, strict=True)] == [
        2.5 for _ in before
    ]


def test_the_host_of_the_rank_that_did_not_come(tmp_path, monkeypatch):
    """Is named if the job has several hosts."""
    follower, _ = _follow("rank-missing-skipped", tmp_path, monkeypatch, 2.0, of_host=4)
    told = list(watch_table.told_hangs(follower).values())
    assert "rank 4 waits for rank 5 on node1 in all_reduce" in told[0]


def test_only_slots_that_were_ever_taken_are_read(tmp_path):
    """A ring has 128, and a process a few communicators."""
    directory = unpack(DIRECTORY / "rank-missing-skipped", tmp_path)
    for path in directory.glob("*.ring"):
        header, heads = read_heads(path)
        assert (header, len(heads), len(read_slots(path))) == (read_header(path), 5, 5)
        assert [slot[:HEAD_BYTES] for slot in read_slots(path)] == heads


def test_a_job_that_ended(tmp_path, monkeypatch):
    """Whoever called all, and ended, waits for nobody."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    follower = Follower(unpack(DIRECTORY / "clean", tmp_path))
    follower.look()
    assert follower.hangs == []


def test_watch_needs_no_database():
    """DuckDB is not installed where only the log is written, and watch works there."""
    assert python("import sys, tracehook.commands.watch as _; sys.exit('duckdb' in sys.modules)").status == 0


def test_ranks_in_the_end_of_their_last_communicator_stand_still_behind_their_calls(tmp_path):
    """They ran ahead, and wait in dist.destroy_process_group(): no slot has their calls any more, but their logs do."""
    watch = live_waits.LiveWaits()
    watch.look(_two_ranks, GrowingDirectory(tmp_path), 0.0)
    assert [(hang.waiting, hang.missing, hang.seconds) for hang in watch.hangs] == [(["rank 0"], ["rank 1"], 9.0)]


def _two_ranks():
    """Return two ranks, of which the second one made a call less."""
    made = [Call(number, ALL_REDUCE, 1024, -1, number + 1, number + 1) for number in range(2)]
    return {
        f"rank {rank}": live_waits.Running(
            *(rank, 1000 + rank, False, 10 * SECOND),
            {"world": counted("world", 1, rank, 2, made[: 2 - rank])},
            *({}, frozenset(), (), True),
        )
        for rank in (0, 1)
    }


@pytest.mark.parametrize("answers", [True, False])
def test_who_did_not_come_is_asked_every_ten_seconds_if_it_answers(answers, tmp_path, monkeypatch):
    """Who waits in NCCL is not asked. One that somebody stopped would hold up each look for seconds."""
    asked = []

    def ask(rings, _):
        asked.append(list(rings))
        return list(rings) if answers else []

    monkeypatch.setattr(live_waits, "ask_rings", ask)
    monkeypatch.setattr(GrowingDirectory, "ring", lambda _, name: tmp_path / f"{name}.ring")
    watch = live_waits.LiveWaits()
    for seconds in (0, 3, 6, 9, 12, 15):
        watch.look(_two_ranks, GrowingDirectory(tmp_path), float(seconds))
    assert asked == [[tmp_path / "rank 1.ring"], [tmp_path / "rank 1.ring"] if answers else []]

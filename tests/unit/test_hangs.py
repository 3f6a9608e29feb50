"""Who is stuck, of waits that are made up: this process, and others that live."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracehook.rehearsal.hangs import find_hang, is_of

LIMIT = 60.0


@pytest.fixture(scope="module")
def pids() -> Iterator[list[int]]:
    """Return the pids of three processes that live, and of one that does not."""
    code = "import sys; sys.stdin.read()"
    living = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(3)]
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    yield [*(process.pid for process in living), gone.pid]
    for process in living:
        process.communicate()


def wait(
    folder: Path,
    pids: list[int],
    rank: int,
    missing: list[int],
    seconds: float,
    group: str = "ab",
    name: str = "",
    number: int = 0,
    call: str = "",
) -> None:
    """Write what a rank says that waits."""
    told = {
        "rank": rank,
        "pid": pids[rank],
        "call": call or f"ncclAllReduce of 4 float32, sum (collective {number or rank + 1})",
        "communicator": group * 16,
        "key": group[::-1] * 8,
        "group": name,
        "since_ns": int((time.monotonic() - seconds) * 1e9),
        "members": [[each, pids[each]] for each in range(3)],
        "missing": [[each, pids[each]] for each in missing],
    }
    (folder / f"wait.{pids[rank]}.1.json").write_text(json.dumps(told))


def test_messages_of_several_pairs_are_several_calls(tmp_path: Path, pids: list[int]) -> None:
    """Each pair counts its messages, and who waits for whom is told of each."""
    for rank, missing in ((0, 1), (1, 2), (2, 1)):
        wait(tmp_path, pids, rank, [missing], 20, call="ncclRecv of 4 float32 (message 4)")
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert sorted(call.ranks for call in found.calls) == [(1, 0, 2), (2, 1)]


def test_a_rank_that_owes_both_halves_of_an_exchange_is_named_once(tmp_path: Path, pids: list[int]) -> None:
    """A group of a send and a receive waits for the same rank twice."""
    wait(tmp_path, pids, 0, [1, 1], 20, call="ncclSend of 4 float32 (message 4)")
    found = find_hang(tmp_path, 10)
    assert found is not None
    assert found.lines[0].count("rank 1 did not come") == 1


def test_a_rank_that_calls_what_more_ranks_ended_without_is_named_first(tmp_path: Path, pids: list[int]) -> None:
    """Most ranks are right. Of two, the one that ended may have ended too early."""
    wait(tmp_path, [*pids, pids[3]], 0, [3, 4], 20)  # two ranks, of one process that is gone
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert found.calls[0].ranks == (0, 3, 4)
    wait(tmp_path, pids, 0, [3], 20)
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert found.calls[0].ranks == (3, 0)


def test_a_circle_is_a_hang_after_five_seconds(tmp_path: Path, pids: list[int]) -> None:
    """And not sooner."""
    wait(tmp_path, pids, 0, [1], 20, name="tp")
    wait(tmp_path, pids, 1, [0], 4, "cd")
    assert find_hang(tmp_path, LIMIT) is None
    wait(tmp_path, pids, 1, [0], 6, "cd")
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert found.lines[0] == (
        "rank 0 waits in ncclAllReduce of 4 float32, sum (collective 1) of communicator babababababababa, group tp "
        "(ranks 0, 1, 2) for 20 s; rank 1 did not come: it waits in ncclAllReduce of 4 float32, sum (collective 2) of "
        "communicator dcdcdcdcdcdcdcdc for rank 0"
    )
    assert found.pids == set(pids[:3])
    assert [(call.key[:2], call.ranks) for call in found.calls] == [("ba", (1, 0)), ("dc", (0, 1))]
    assert time.monotonic_ns() - found.calls[0].since_ns == pytest.approx(20e9, abs=2e9)


def test_who_waits_for_a_rank_that_does_not_wait_has_time(tmp_path: Path, pids: list[int]) -> None:
    """It may compute. After the limit it is named."""
    wait(tmp_path, pids, 0, [2], 50)
    wait(tmp_path, pids, 1, [0], 50)
    assert find_hang(tmp_path, LIMIT) is None
    found = find_hang(tmp_path, 40.0)
    assert found is not None
    assert "rank 2 did not come, and waits in no other call" in found.lines[0]


def test_the_circle_stands_before_who_waits_for_it(tmp_path: Path, pids: list[int]) -> None:
    """However long that one has waited."""
    wait(tmp_path, pids, 2, [1], 50)
    wait(tmp_path, pids, 0, [1], 7, "cd")
    wait(tmp_path, pids, 1, [0], 6, "ef")
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert [line.split()[1] for line in found.lines] == ["0", "1", "2"]


def test_the_call_that_is_in_all_circles_stands_before_others(tmp_path: Path, pids: list[int]) -> None:
    """Without it the ranks would go on: rank 1 only waits for one of those who wait for each other."""
    wait(tmp_path, pids, 0, [2], 6, "cd")
    wait(tmp_path, pids, 1, [0], 50)
    wait(tmp_path, pids, 2, [0, 1], 5, "ef")
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert [line.split()[1] for line in found.lines] == ["0", "2", "1"]


@pytest.mark.parametrize("first", [6, 8])
def test_of_two_calls_of_a_circle_the_one_that_fewer_ranks_miss_stands_before_the_other(
    tmp_path: Path, pids: list[int], first: int
) -> None:
    """Two of three wait for rank 2, which skipped a call: it did not come, and not they. Also by the time it has."""
    wait(tmp_path, pids, 0, [2], 7, "cd", number=3)
    wait(tmp_path, pids, 1, [2], 7, "cd", number=3)
    wait(tmp_path, pids, 2, [0, 1], first, "ef")
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert [line.partition(" wait")[0] for line in found.lines] == ["ranks 0, 1", "rank 2"]
    assert found.calls[0].since_ns < found.calls[1].since_ns


def test_a_rank_that_ended_wakes_nobody(tmp_path: Path, pids: list[int]) -> None:
    """Its launcher may not have noticed."""
    wait(tmp_path, pids, 0, [3], 6)
    found = find_hang(tmp_path, LIMIT)
    assert found is not None
    assert found.lines[0].endswith("rank 3 has ended")


def test_only_a_process_that_has_a_file_of_the_rehearsal_mapped_is_its_rank(tmp_path: Path, pids: list[int]) -> None:
    """The number of one that ended may belong to a stranger, who must not be killed."""
    met = tmp_path / "communicator.1"
    met.write_bytes(b"x" * 4096)
    with met.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert is_of(tmp_path, os.getpid())
        met.unlink()  # as the last rank that joins does
        assert is_of(tmp_path, os.getpid())
        assert not is_of(tmp_path / "another", os.getpid())
    assert not any(is_of(tmp_path, pid) for pid in pids)


def test_what_is_no_file_of_ours_is_passed_over(tmp_path: Path) -> None:
    """Half a file, another one."""
    (tmp_path / "wait.1.1.json").write_text('{"rank": 1')
    (tmp_path / "wait.2.1.json").write_text("[]")
    assert find_hang(tmp_path, LIMIT) is None

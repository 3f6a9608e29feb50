"""Who is stuck, of waits that are made up: this process, and others that live."""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

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


class _Waits:
    """What ranks say that wait, and who hangs by it."""

    def __init__(self, folder, pids):
        self.folder, self.pids = folder, pids

    def __call__(self, rank, missing, seconds, group="ab", name="", number=0, call=""):
        told = {
            "rank": rank, "pid": self.pids[rank],
            "call": call or f"ncclAllReduce of 4 float32, sum (collective {number or rank + 1})",
            "communicator": group * 16, "key": group[::-1] * 8, "group": name,
            "since_ns": int((time.monotonic() - seconds) * 1e9),
            "members": [[each, self.pids[each]] for each in range(3)],
            "missing": [[each, self.pids[each]] for each in missing],
        }  # fmt: skip
        (self.folder / f"wait.{self.pids[rank]}.1.json").write_text(json.dumps(told))

    def hang(self, limit=LIMIT):
        """Return the hang that there is."""
        found = find_hang(self.folder, limit)
        assert found is not None
        return found


@pytest.fixture
def wait(tmp_path, pids):
    """Write what a rank says that waits: for whom, and since when."""
    return _Waits(tmp_path, pids)


def test_messages_of_several_pairs_are_several_calls(wait):
    """Each pair counts its messages, and who waits for whom is told of each."""
    for rank, missing in ((0, 1), (1, 2), (2, 1)):
        wait(rank, [missing], 20, call="ncclRecv of 4 float32 (message 4)")
    found = wait.hang()
    assert sorted(call.ranks for call in found.calls) == [(1, 0, 2), (2, 1)]


def test_a_rank_that_owes_both_halves_of_an_exchange_is_named_once(wait):
    """A group of a send and a receive waits for the same rank twice."""
    wait(0, [1, 1], 20, call="ncclSend of 4 float32 (message 4)")
    found = wait.hang(10)
    assert found.lines[0].count("rank 1 did not come") == 1


def test_a_rank_that_calls_what_more_ranks_ended_without_is_named_first(wait):
    """Most ranks are right. Of two, the one that ended may have ended too early."""
    _Waits(wait.folder, [*wait.pids, wait.pids[3]])(0, [3, 4], 20)  # two ranks, of one process that is gone
    found = wait.hang()
    assert found.calls[0].ranks == (0, 3, 4)
    wait(0, [3], 20)
    found = wait.hang()
    assert found.calls[0].ranks == (3, 0)


def test_a_circle_is_a_hang_after_five_seconds(wait):
    """And not sooner."""
    wait(0, [1], 20, name="tp")
    wait(1, [0], 4, "cd")
    assert find_hang(wait.folder, LIMIT) is None
    wait(1, [0], 6, "cd")
    found = wait.hang()
    assert found.lines[0] == (
        "rank 0 waits in ncclAllReduce of 4 float32, sum (collective 1) of communicator babababababababa, group tp "
        "(ranks 0, 1, 2) for 20 s; rank 1 did not come: it waits in ncclAllReduce of 4 float32, sum (collective 2) of "
        "communicator dcdcdcdcdcdcdcdc for rank 0"
    )
    assert found.pids == set(wait.pids[:3])
    assert [(call.key[:2], call.ranks) for call in found.calls] == [("ba", (1, 0)), ("dc", (0, 1))]
    assert time.monotonic_ns() - found.calls[0].since_ns == pytest.approx(20e9, abs=2e9)


def test_who_waits_for_a_rank_that_does_not_wait_has_time(wait):
    """It may compute. After the limit it is named."""
    wait(0, [2], 50)
    wait(1, [0], 50)
    assert find_hang(wait.folder, LIMIT) is None
    found = wait.hang(40.0)
    assert "rank 2 did not come, and waits in no other call" in found.lines[0]


def test_a_rank_that_somebody_stopped_is_said_to_be_stopped(wait, pids):
    """It neither computes nor waits."""
    os.kill(pids[2], signal.SIGSTOP)
    os.waitid(os.P_PID, pids[2], os.WSTOPPED | os.WNOWAIT)
    wait(0, [2], 50)
    found = wait.hang(40.0)
    os.kill(pids[2], signal.SIGCONT)
    assert found.lines[0].endswith("rank 2 did not come, and waits in no other call: somebody stopped it (SIGSTOP)")


def test_the_circle_stands_before_who_waits_for_it(wait):
    """However long that one has waited."""
    wait(2, [1], 50)
    wait(0, [1], 7, "cd")
    wait(1, [0], 6, "ef")
    found = wait.hang()
    assert [line.split()[1] for line in found.lines] == ["0", "1", "2"]


def test_the_call_that_is_in_all_circles_stands_before_others(wait):
    """Without it the ranks would go on: rank 1 only waits for one of those who wait for each other."""
    wait(0, [2], 6, "cd")
    wait(1, [0], 50)
    wait(2, [0, 1], 5, "ef")
    found = wait.hang()
    assert [line.split()[1] for line in found.lines] == ["0", "2", "1"]


@pytest.mark.parametrize("first", [6, 8])
def test_of_two_calls_of_a_circle_the_one_that_fewer_ranks_miss_stands_before_the_other(wait, first):
    """Two of three wait for rank 2, which skipped a call: it did not come, and not they. Also by the time it has."""
    wait(0, [2], 7, "cd", number=3)
    wait(1, [2], 7, "cd", number=3)
    wait(2, [0, 1], first, "ef")
    found = wait.hang()
    assert [line.partition(" wait")[0] for line in found.lines] == ["ranks 0, 1", "rank 2"]


def test_a_rank_that_ended_wakes_nobody(wait):
    """Its launcher may not have noticed."""
    wait(0, [3], 6)
    found = wait.hang()
    assert found.lines[0].endswith("rank 3 has ended")


def test_only_a_process_that_has_a_file_of_the_rehearsal_mapped_is_its_rank(tmp_path, pids):
    """The number of one that ended may belong to a stranger, who must not be killed."""
    met = tmp_path / "communicator.1"
    met.write_bytes(b"x" * 4096)
    with met.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert is_of(tmp_path, os.getpid())
        met.unlink()  # as the last rank that joins does
        assert is_of(tmp_path, os.getpid())
        assert not is_of(tmp_path / "another", os.getpid())
    assert not any(is_of(tmp_path, pid) for pid in pids)


def test_what_is_no_file_of_ours_is_passed_over(tmp_path):
    """Half a file, another one."""
    (tmp_path / "wait.1.1.json").write_text('{"rank": 1')
    (tmp_path / "wait.2.1.json").write_text("[]")
    assert find_hang(tmp_path, LIMIT) is None


def test_a_rank_that_is_a_thread_is_not_said_to_have_come(wait, pids):
    """Three ranks of one process: one waits, and of the others only the process is known."""
    wait.pids = [pids[0]] * 3
    wait(0, [0], 20)
    assert wait.hang().lines[0].endswith("for 20 s; another rank of the same process did not come")


def test_ranks_that_came_to_one_call_with_what_does_not_fit_all_came(wait):
    """They wait for each other, each of them in that call: nobody is said not to have come to it."""
    for rank in (0, 1):
        wait(rank, [0, 1], 20, number=3)
    found = wait.hang()
    assert found.lines[0].endswith("for 20 s; all came, and none goes on")
    assert found.calls[0].ranks == (0, 1)

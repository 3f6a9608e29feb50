"""Ranks of one host meet in shared memory before they go to the store; nothing but time depends on it."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from support.giving_up import give_up
from support.together import PATIENCE, compare, together

from tracehook import _core
from tracehook.agreement import leftovers, mailbox, store_worker
from tracehook.agreement.agreement import Agreement
from tracehook.errors import RegistrationFailed, RegistrationMismatch, RegistrationTimeout

ABOUT = "communicator c"
LONG = 160.0  # seconds of a deadline of which an eighth is more than mailbox.PATIENCE


@pytest.fixture
def channel() -> str:
    """Return a name that no other test's files have."""
    return uuid.uuid4().hex


def _members(channel: str, by_host: list[list[int]]) -> list[Agreement]:
    store = dist.HashStore()
    names = {rank: f"host {number}" for number, ranks in enumerate(by_host) for rank in ranks}
    return [Agreement(store, channel, rank, len(names), ABOUT, host=names[rank]) for rank in range(len(names))]


def _be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank with a deadline that is LONG wait at the mailbox for however long the others are held up."""
    monkeypatch.setattr(store_worker, "PATIENCE", PATIENCE)


@pytest.fixture
def box() -> Any:
    """Return two views of one mailbox, of its first and of its second rank."""
    path = leftovers.SHARED_MEMORY / f"tracehook-test-{uuid.uuid4().hex}"
    first = _core.HostMailbox(str(path), 2, 0)
    assert not first.is_complete
    second = _core.HostMailbox(str(path), 2, 1)
    assert not path.exists(), "the file loses its name when all have opened it"
    return first, second


def test_posts_come_together(box):
    """Whoever gathers waits for the last post, and wakes up with it."""
    first, second = box
    first.post(1, "mine")
    late = threading.Timer(0.1, second.post, (1, "theirs"))
    late.start()
    assert first.gather(1, PATIENCE) == ["mine", "theirs"]
    late.join()


def test_what_is_published_wakes_who_waits(box):
    """Whoever waits for a verdict has it as soon as it is there, and nothing of another round."""
    first, second = box
    late = threading.Timer(0.1, first.publish, (1, "verdict"))
    late.start()
    assert second.published(1, PATIENCE) == "verdict"
    assert second.published(2, 0.01) is None
    late.join()


def test_who_waits_is_told_that_the_posts_did_not_come_together(box):
    """When the first rank gives up, those that wait for it do not wait any longer."""
    first, second = box
    second.post(1, "theirs")
    begin = time.monotonic()
    late = threading.Timer(0.1, first.gather, (1, 0.0))
    late.start()
    assert second.published(1, PATIENCE) is None
    assert time.monotonic() - begin < PATIENCE / 2
    late.join()


def test_a_round_that_is_over_is_not_waited_for(box):
    """A rank that comes late finds that another one has gone on, and goes to the store at once."""
    first, second = box
    second.post(2, "later")
    first.post(1, "mine")
    assert first.gather(1, PATIENCE) == []
    first.publish(2, "verdict")
    assert second.published(1, PATIENCE) is None
    second.post(1, "late")  # of a round that is over: changes nothing
    first.post(2, "mine")
    assert first.gather(2, PATIENCE) == ["mine", "later"]


def test_a_text_that_is_too_long_is_empty(box):
    """What does not fit into the mailbox says so, and is sought in the store."""
    first, second = box
    first.post(1, "x" * 8001)
    second.post(1, "é" * 4000)
    assert first.gather(1, PATIENCE) == ["", "é" * 4000]


def test_a_mailbox_that_cannot_be_opened_raises():
    """The error names the file."""
    with pytest.raises(FileNotFoundError, match="/no/such/folder/board"):
        _core.HostMailbox("/no/such/folder/board", 2, 0)


def test_a_link_is_not_followed(tmp_path):
    """Whoever put a link where the board should be gets no file of ours."""
    (tmp_path / "board").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="board"):
        _core.HostMailbox(str(tmp_path / "board"), 2, 0)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("by_host", [[[0, 1]], [[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1, 2, 3]]])
def test_ranks_that_only_follow_need_no_store(channel, monkeypatch, by_host):
    """From the second round on, only the first rank of each host needs the store."""
    _be_patient(monkeypatch)
    members = _members(channel, by_host)
    for _ in range(3):
        assert set(compare(members, timeout=LONG)) == {False}
    before = [member.trips for member in members]
    for _ in range(5):
        assert set(compare(members, timeout=LONG)) == {False}
    needed = [member.trips > earlier for member, earlier in zip(members, before, strict=True)]
    speakers = {ranks[0] for ranks in by_host}
    assert needed == [rank in speakers for rank in range(len(members))]


def test_ranks_differ_on_two_hosts(channel):
    """What one rank of another host wants is named with its rank on all ranks."""
    members = _members(channel, [[0, 1], [2, 3]])
    assert set(compare(members)) == {False}
    wishes = ["a", "a", "a", "b"]
    found = together(
        [lambda m=m, w=w: m.compare("windows", [w], PATIENCE) for m, w in zip(members, wishes, strict=True)]
    )
    assert {type(problem) for problem in found} == {RegistrationMismatch}
    assert len({str(problem) for problem in found}) == 1
    assert "rank 3 wants 'b'" in str(found[0])
    assert set(compare(members)) == {False}


@pytest.mark.parametrize("missing", range(4))
def test_a_rank_that_does_not_come_is_named(channel, missing):
    """Whoever is missing, on the leader's host or another one, the first of its host or not, is the one named."""
    members = _members(channel, [[0, 1], [2, 3]])
    assert set(compare(members)) == {False}
    came = [member for rank, member in enumerate(members) if rank != missing]
    found = give_up(came, 1.0)
    assert {tuple(problem.missing) for problem in found} == {(missing,)}
    late = compare([members[missing]])[0]
    assert isinstance(late, RegistrationTimeout)
    assert "came late itself" in str(late)
    assert set(compare(members)) == {False}


@pytest.mark.parametrize("who", range(4))
def test_a_rank_that_declines_spares_the_others_the_wait(channel, who):
    """A rank that cannot go on says so, wherever it is; all others raise at once what it said, and come level again."""
    members = _members(channel, [[0, 1], [2, 3]])
    assert set(compare(members)) == {False}
    begin = time.monotonic()
    calls: list[Any] = [lambda m=m: m.compare("windows", ["a"], PATIENCE, (1,)) for m in members]
    calls[who] = lambda: members[who].decline("windows", "no memory", PATIENCE, (1,))
    found = together(calls)
    assert time.monotonic() - begin < PATIENCE / 2
    found.pop(who)
    assert {type(problem) for problem in found} == {RegistrationFailed}
    assert f"rank {who} could not go on: no memory" in str(found[0])
    assert set(compare(members)) == {False}


def test_without_shared_memory_all_goes_through_the_store(channel, tmp_path, monkeypatch):
    """A host whose shared memory cannot be written agrees as before."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "absent")
    members = _members(channel, [[0, 1]])
    for _ in range(3):
        assert set(compare(members)) == {False}
    assert all(member.trips > 6 for member in members)


def test_no_file_is_left(channel, monkeypatch, tmp_path):
    """The boards of a group that has met leave no file, nor does one that some rank never opened."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    members = _members(channel, [[0, 1]])
    for _ in range(2):
        assert set(compare(members)) == {False}
    assert list(tmp_path.iterdir()) == []
    lonely = mailbox.HostMailbox(channel, [4, 5], 4)
    assert len(list(tmp_path.iterdir())) == 1
    del lonely
    assert list(tmp_path.iterdir()) == []


def test_the_mailbox_of_a_killed_job_is_removed_by_a_later_one(channel, monkeypatch, tmp_path):
    """Not one that somebody may still come to, and no file of another program."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    killed = mailbox.HostMailbox(channel, [0, 1], 0)  # rank 1 never comes
    (left,) = tmp_path.iterdir()
    young = mailbox.HostMailbox(channel, [2, 3], 2)
    other = tmp_path / "of another program"
    other.touch()
    for path in (left, other):
        os.utime(path, (1.0, 1.0))
    leftovers.remove()
    assert not left.exists()
    assert other.exists()
    assert len(list(tmp_path.iterdir())) == 2
    del killed, young


def test_containers_are_hosts_of_their_own(monkeypatch, tmp_path):
    """What names a host is its shared memory: another mount is another host, none at all is no host."""
    here = mailbox.shared_memory_domain()
    assert here
    names = []
    for place in (tmp_path, Path("/no/such/folder")):
        monkeypatch.setattr(leftovers, "SHARED_MEMORY", place)
        mailbox.shared_memory_domain.cache_clear()
        names.append(mailbox.shared_memory_domain())
    mailbox.shared_memory_domain.cache_clear()
    assert names[0] not in ("", here)
    assert names[1] == ""


@pytest.mark.parametrize("seed", range(10))
def test_random_hosts_and_delays(channel, seed):
    """Whoever comes late, declines or wants something else: one outcome on all ranks, and a last call that succeeds."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 6)
    by_host: list[list[int]] = [[] for _ in range(rng.randint(1, 3))]
    for rank in range(ranks):
        rng.choice(by_host).append(rank)
    members = _members(channel, [ranks for ranks in by_host if ranks])
    assert set(compare(members)) == {False}
    for position in range(1, 8):
        declining, odd = (rng.randrange(ranks) if rng.random() < 0.3 else None for _ in range(2))
        delays = [rng.choice([0, 0, 0, 0.01, 0.05, 0.4]) for _ in range(ranks)]

        def call(rank: int, position: int = position, declining: Any = declining, odd: Any = odd, delays: Any = delays):
            time.sleep(delays[rank])
            wish = "b" if rank == odd else "a"
            if rank == declining:
                return members[rank].decline("windows", "no", PATIENCE, (position,))
            return members[rank].compare("windows", [wish], PATIENCE, (position,))

        found = together([lambda rank=rank: call(rank) for rank in range(ranks)])
        told = {str(one) for rank, one in enumerate(found) if rank != declining}
        assert len(told) <= 1, (position, told)
        if declining is None:
            assert (told == {"False"}) == (odd is None)
    assert set(compare(members)) == {False}

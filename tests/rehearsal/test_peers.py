"""Ranks that map each other's memory and copy directly, on emulated devices."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal, rehearse
from support.torch_versions import TORCH

from tracehook.errors import PeerTensorGone

JOB = "peers.py"
MB = 1 << 20
SEMAPHORES = 1  # the segment with the semaphores, which each pair of connected ranks has mapped


def play(log: Path, *cases: str, ranks: int = 2, **env: str) -> Rehearsal:
    """Run cases on some ranks, each of which must end by itself, well and with nothing mapped or held."""
    run = rehearse(JOB, *cases, ranks=ranks, log=log, env={"SYMM_REGISTER_TIMEOUT": "30", **env}, timeout=120)
    run.assert_good()
    for rank in range(ranks):
        assert run.facts(rank)["left"] == [True, True], run.output
    assert_balanced(run)
    return run


def assert_balanced(run: Rehearsal) -> None:
    """Assert that every segment that was shared was let go of, and every one that was mapped was unmapped."""
    for rank in {log.rank for log in run.logs}:
        opened = [(e["comm"], e["peer_life"], e["generation"]) for e in run.events("ipc.open", rank) if e["ok"]]
        closed = [(e["peer_life"], e["generation"]) for e in run.events("ipc.close", rank) if e["ok"]]
        assert sorted(life for _, *life in opened) == sorted(map(list, closed)), rank
        given = [(e["comm"], e["peer"], e["generation"]) for e in run.events("ipc.export", rank)]
        released = [(e["comm"], e["peer"], e["generation"]) for e in run.events("ipc.release", rank)]
        assert sorted(given) == sorted(released), rank
    assert not run.events("peer.lost")


def others(rank: int, ranks: int) -> list[float]:
    """Return the ranks other than this one."""
    return [float(other) for other in range(ranks) if other != rank]


EXPANDABLE: dict[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
FABRIC = EXPANDABLE | {"TRACEHOOK_EMU_FABRIC": "1"}


@pytest.mark.parametrize(("env", "ranks"), [({}, 4), (EXPANDABLE, 2)], ids=["segment-4", "expandable-2"])
def test_gets_and_puts_over_several_repetitions(tmp_path: Path, ranks: int, env: dict[str, Any]) -> None:
    """Tensors at an offset in a segment, new ones at each turn: all ranks get and put the right values."""
    run = play(tmp_path, "repetitions", ranks=ranks, **env)
    for rank, facts in enumerate(run.told):
        assert facts["got"] == [others(rank, ranks)] * 6, run.output
        assert facts["put"] == [others(rank, ranks)] * 6, run.output
    opened = [event for event in run.events("ipc.open", 0) if event["peer"] == 1]
    assert env or len(opened) <= 6, "a segment is mapped once, not once for each tensor"
    assert {event["handle"] for event in opened} == {"file" if env else "runtime"}


def test_the_address_of_a_freed_tensor_comes_again(tmp_path: Path) -> None:
    """A tensor is freed, and a new one in another segment gets its address: peers see the new one."""
    run = play(tmp_path, "same_address")
    for rank, facts in enumerate(run.told):
        assert facts["values"] == [[1.0 - rank]] * 3
        assert facts["released"], run.output
        assert (facts["segments"], facts["freed"], facts["mapped"]) == (3, True, SEMAPHORES)
    assert len({event["peer_segment"] for event in run.events("ipc.open", 0)}) == 3 + SEMAPHORES


def test_one_rank_hits_while_others_miss(tmp_path: Path) -> None:
    """One rank gives what its peers have mapped, the others what is new: none waits for a miss that does not come."""
    ranks = 4
    run = play(tmp_path, "one_hits", ranks=ranks)
    assert [facts["values"] for facts in run.told] == [[others(rank, ranks)] * 4 for rank in range(ranks)]


def test_a_batch_of_tensors_for_one_peer(tmp_path: Path) -> None:
    """Tensors of equal content, without elements, with strides and of several types keep apart and keep their shape."""
    run = play(tmp_path, "batch")
    for facts in run.told:
        assert (facts["values"], facts["same"], facts["again"]) == ([7.0, 7.0], False, [7.0, 7.0])
        assert (facts["empty"], facts["scalar"], facts["strides"]) == ([0, 3], 5.0, [1, 4])
        assert facts["turned"] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
        assert (facts["part"], facts["half"], facts["flags"]) == ([[5.0, 6.0], [9.0, 10.0]], 6.0, [True, False])
        assert facts["nbytes"] == [1 << 20, 0, 12]


def test_giving_without_getting(tmp_path: Path) -> None:
    """A rank may give nothing, and the two sides of an exchange may give different things."""
    ranks = 4
    run = play(tmp_path, "nothing_back", ranks=ranks)
    for rank, facts in enumerate(run.told):
        assert facts["from_zero"] == [0.0 if other == 0 else None for other in others(rank, ranks)]
        assert facts["from_left"] == (rank - 1) % ranks


def test_a_group_that_was_split(tmp_path: Path) -> None:
    """Its name is no place to meet: up to torch 2.13 it differs between ranks that are in other numbers of groups."""
    run = play(tmp_path, "split")
    names = 2 if TORCH < (2, 14) else 1
    assert [facts["names"] for facts in run.told] == [names, names]
    assert [facts["from_left"] for facts in run.told] == [1.0, 0.0]


def test_calls_of_other_ranks_in_any_order(tmp_path: Path) -> None:
    """An exchange waits for the ranks of its own call, and for no later call of them."""
    run = play(tmp_path, "orders", ranks=3)
    for rank, others_of_rank in enumerate(([1, 2], [0, 2], [1, 0])):
        assert run.facts(rank)["pairs"] == [[other, float(other)] for other in others_of_rank]
    for rank, others_of_rank in enumerate(([1, 2, 2], [0, 2], [0, 0, 1])):
        assert run.facts(rank)["again"] == [[other, float(other)] for other in others_of_rank]


def test_what_cannot_be_shared(tmp_path: Path) -> None:
    """It is one line with the cause, on both sides and at once; the exchanges after it are level again."""
    run = play(tmp_path, "refusals")
    mine, theirs = run.facts(0)["texts"], run.facts(1)["texts"]
    for name, cause in {
        "cpu": "a tensor on cpu was given, expected one on cuda:0",
        "text": "a str was given, expected a torch.Tensor",
        "sparse": "sparse, quantised, conjugated",
        "dimensions": "a tensor of 9 dimensions; at most 8 can be shared",
        "of_peer": ") is a peer's",
    }.items():
        assert mine[name][0] == theirs[name][0] == "PeerError"
        assert cause in mine[name][1]
        assert "rank 0 gave up" in theirs[name][1]
        assert cause in theirs[name][1]
    for texts in (mine, theirs):
        assert [texts[name][0] for name in ("self", "rank")] == ["ValueError"] * 2
        for name in ("put", "add", "item", "out"):
            assert "reading only" in texts[name][1]
        assert texts["closed"] == ["PeerError", "peers of group 0: it was closed. Make another PeerGroup"]
        assert texts["gone"] == ["PeerTensorGone", f"peers of group 0: it was closed. {PeerTensorGone.ADVICE}"]
    assert (run.facts(0)["after"], run.facts(0)["kind"]) == (1.0, "ReadOnlyTensor")


def test_memory_of_symmetric_pools(tmp_path: Path) -> None:
    """Segments of the pools go as file descriptors, once to each peer."""
    ranks = 4
    run = play(tmp_path, "pools", ranks=ranks)
    for rank in range(ranks):
        assert run.facts(rank)["values"] == [others(rank, ranks)] * 3
    opened = [event for event in run.events("ipc.open", 0) if "peer_pool_segment" in event]
    assert {event["handle"] for event in opened} == {"file"}
    assert {event["handle"] for event in run.events("ipc.export") if "pool_segment" in event} == {"file"}


@pytest.mark.parametrize(
    ("env", "kind", "ranks"), [(EXPANDABLE, "file", 4), (FABRIC, "fabric", 2)], ids=["file-4", "fabric-2"]
)
def test_memory_of_expandable_segments(tmp_path: Path, ranks: int, env: dict[str, str], kind: str) -> None:
    """The allocations under a tensor go to the peer as descriptors or fabric handles, and it sees one piece."""
    run = play(tmp_path, "allocations", ranks=ranks, **env)
    for rank in range(ranks):
        facts, left, right = run.facts(rank), (rank - 1) % ranks, (rank + 1) % ranks
        assert facts["place"] is None, "a segment that the hook does not follow"
        assert facts["got"] == [float(left), 10.0 * left + 1, 10.0 * left + 2]
        assert (facts["put"], facts["before"]) == (100.0 + right, float(rank))
        assert facts["gone"][0] == "PeerTensorGone"
        assert facts["beside"] == [10.0 * left + 1, 10.0 * left + 2], "tensors in the same allocation are not"
        assert (facts["freed"], facts["address"], facts["new"]) == (True, True, 200.0 + left)
    opened = run.events("ipc.open", 0)
    assert {event["handle"] for event in opened} == {kind}
    assert not any("peer_segment" in event or "peer_pool_segment" in event for event in opened)
    assert {60 * MB, 20 * MB} <= {event["size"] for event in opened}, "whole allocations of 20 MiB"


def test_memory_that_is_freed_while_a_peer_uses_it(tmp_path: Path) -> None:
    """The owner drops its tensor and empties the cache: it keeps the memory until the peer's last tensor is gone."""
    ranks = 4
    run = play(tmp_path, "freed_while_imported", ranks=ranks)
    for rank, facts in enumerate(run.told):
        assert facts["still"] is ((rank + 1) % ranks != 0), "rank 0 keeps no torch tensor"
        assert facts["gone"][0] == "PeerTensorGone"
        assert (facts["released"], facts["freed"]) == (True, True)
        assert rank == 0 or facts["kept"] == float(rank)


@pytest.mark.parametrize("env", [{}, EXPANDABLE], ids=["segment", "expandable"])
def test_an_owner_asks_for_its_memory(tmp_path: Path, env: dict[str, Any]) -> None:
    """`release` ends what peers have of a tensor that its owner keeps, and it can be shared again."""
    run = play(tmp_path, "release", **env)
    for rank, facts in enumerate(run.told):
        assert (facts["released"], facts["returned"]) == ([True, False], True)
        assert facts["gone"][0] == "PeerTensorGone"
        assert facts["before"] == facts["again"] == 2.0 - rank
    generations = [event["generation"] for event in run.events("ipc.export", 0)]
    assert len(set(generations)) == 2 + SEMAPHORES


def test_streams_order_puts_and_gets(tmp_path: Path) -> None:
    """Semaphores alone order copies in both directions, also when they are captured and replayed."""
    run = play(tmp_path, "semaphores", "captured", ranks=4)
    for facts in run.told:
        assert facts["put"] == facts["got"] == [0.0] * 8
        assert (facts["outside"], facts["replayed"], facts["after"]) == ([0.0] * 2, [0.0] * 5, [0.0] * 2)
        assert facts["new"] == 0.0, "memory that was mapped during the capture"
        assert facts["channel"] == ["ValueError", "channel 64: there are 64, from 0"]


def test_a_wrong_argument_takes_no_signal(tmp_path: Path) -> None:
    """The program catches the error, and its next call finds the signal that the owner sent for the first."""
    run = play(tmp_path, "caught")
    for rank, facts in enumerate(run.told):
        read_only, size, number, no_peers = facts["puts"]
        assert "shares it for reading only" in read_only[1]
        assert (size[0], number) == ("RuntimeError", ["TypeError", "tracehook: expected a Tensor, got int"])
        assert no_peers == ["TypeError", "tracehook: expected a PeerTensor, got Tensor"]
        size, number, read_only = facts["gets"]
        assert (size[0], number) == ("RuntimeError", ["TypeError", "tracehook: expected a Tensor, got int"])
        assert "shared for reading only" in read_only[1]
        assert (facts["put"], facts["got"]) == (100.0 + 1 - rank, 1.0 - rank)


def test_a_capture_is_not_disturbed(tmp_path: Path) -> None:
    """What a peer wants back during a capture stays mapped until it is over."""
    run = play(tmp_path, "polled_in_capture")
    for facts in run.told:
        assert (facts["during"], facts["after"], facts["kept"]) == (2, True, 2.0)


@pytest.mark.parametrize("kind", ["segment", "pool"])
def test_unmapping_beside_a_capture_of_another_thread(tmp_path: Path, kind: str) -> None:
    """A peer's memory is unmapped while another thread captures: its graph is whole, and nothing waits for its end."""
    run = rehearse("peers_beside_capture.py", kind, ranks=2, log=tmp_path).assert_good()
    for rank, facts in enumerate(run.told):
        assert (facts["value"], facts["unmapped"], facts["capture"]) == (1.0 - rank, 1, 0), run.output


def test_memory_of_nccl_may_go_while_peers_have_tensors_open(tmp_path: Path) -> None:
    """The emulation once took the memory that was freed for that of a tensor, and said that a rule was broken."""
    run = play(tmp_path, "beside_nccl_memory").assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["values"] == [1.0 - rank, 11.0 - rank]


def test_threads_of_one_process_are_no_peers(tmp_path: Path) -> None:
    """CUDA opens no handle in the process that made it, and says of it only that the context is invalid."""
    run = rehearse("peers_of_one_process.py", devices=2, log=tmp_path).assert_good()
    for rank in (0, 1):
        assert f"rank {1 - rank} is a thread of this process" in run.facts()[f"rank{rank}"]


def test_nothing_is_left(tmp_path: Path) -> None:
    """After close() the process has the mappings and file descriptors that it had before."""
    run = play(tmp_path, "nothing_left")
    for facts in run.told:
        assert (facts["more"], facts["maps"], facts["files"]) == (3 + SEMAPHORES, 0, True), facts


# --- what goes wrong ---


def broken(log: Path, case: str, ranks: int, **env: str) -> Rehearsal:
    """Run a case in which a rank is killed."""
    run = rehearse(JOB, case, ranks=ranks, log=log, env={"SYMM_REGISTER_TIMEOUT": "30", **env}, timeout=120)
    assert not run.finished.late, run.output
    assert run.broken == [], run.output
    return run


def lines(facts: dict[str, Any], name: str) -> str:
    """Return the line of an exception."""
    return str(facts["texts"][name][1])


def test_a_killed_peer(tmp_path: Path) -> None:
    """Streams that wait for it go on, calls say which rank ended, what was mapped goes, the others exchange on."""
    ranks = 4
    run = broken(tmp_path, "cut_off", ranks)
    victim = ranks - 1
    for rank in range(victim):
        facts = run.facts(rank)
        assert facts["waited"] < 10
        assert facts["copied"] == float(victim), "memory of a dead peer stays readable while it is mapped"
        assert {kind for kind, _ in facts["texts"].values()} == {"PeerLost"}
        assert lines(facts, "exchange").startswith(f"peers of group 0: the process of rank {victim} has ended. ")
        assert (facts["unmapped"], facts["left"]) == (True, [True, True])
        assert facts.get("others", []) == [other for other in others(rank, ranks) if other != victim]
        assert [event["peer"] for event in run.events("peer.lost", rank)] == [victim]
    assert run.status == 128 + 9, run.output


def test_a_peer_that_does_not_come(tmp_path: Path) -> None:
    """The exception names who is missing and what for, at the deadline.

    A late partner hears that it was given up, and does not shift what follows.
    """
    ranks = 4
    run = play(tmp_path, "never_comes", ranks=ranks)
    facts = run.facts(0)
    for name, what in {
        "no_group": "for their PeerGroup to be made",
        "no_meeting": "for a first exchange with this rank",
        "no_exchange": "for exchange 2",
        "no_repeat": "for exchange 7",
        "no_repeat_again": "for exchange 8",
    }.items():
        assert facts["texts"][name][0] == "PeerTimeout"
        assert lines(facts, name).startswith(
            f"peers of group 0: ranks 1, 2, 3 did not come within the 0.5 s that rank 0 waited {what}"
        )
    assert all(0.4 < seconds < 15 for seconds in facts["seconds"])
    for rank in range(ranks):
        assert run.facts(rank)["values"] == run.facts(rank)["level"] == others(rank, ranks)
        vain = [run.facts(rank)["late"], *run.facts(rank)["repeated"]] if rank else []
        for number, (kind, line) in zip((2, 7, 8), vain, strict=rank != 0):
            assert kind == "PeerError"
            assert ": rank 0 gave up: ranks 1, 2, 3 did not come within the 0.5 s" in line
            assert f" for exchange {number}. " in line
        assert run.facts(rank)["anew"] == [50.0 + other for other in others(rank, ranks)]
    assert [event["peer"] for event in run.events("peer.timeout", 0)] == [*range(1, ranks)] * 5


def test_a_forked_child(tmp_path: Path) -> None:
    """It gets one line and has no socket of its parent, so that the parent's end is seen while the child lives."""
    run = broken(tmp_path, "forked", 2)
    for rank, facts in enumerate(run.told):
        assert all("was forked" in text for _, text in facts["child"]["texts"])
        assert facts["child"]["links"] == [-1]
        assert facts["values"] == [1.0 - rank]
    assert run.facts(0)["lost"]
    assert run.facts(0)["text"][0] == "PeerLost"


def _can_unshare() -> bool:
    command = ["unshare", "--pid", "--fork", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="this user may not make a pid namespace")
def test_a_peer_in_another_pid_namespace(tmp_path: Path) -> None:
    """Where handles of one namespace mean nothing in another, both ranks say so in one line, in time."""
    run = rehearse(JOB, "namespace", ranks=2, log=tmp_path, timeout=90)
    for facts in run.told:
        assert facts["text"], run.output
        assert facts["text"][0] in ("PeerError", "PeerTimeout", "PeerLost"), facts
        assert "\n" not in facts["text"][1]
        assert facts["seconds"] < 30
    assert "cannot be mapped" in run.facts(0)["text"][1]
    assert run.facts(1)["pid"] < 100

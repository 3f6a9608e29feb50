"""Who waits for the signals of peers, in jobs that are made up: streams, channels, graphs, calls into NCCL beside."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import pytest

from tracehook.audit import blame, live_waits, semaphores
from tracehook.audit.called import Callers
from tracehook.audit.waits import waits
from tracehook.log.calls import READ, SIGNAL, WAIT, Call, Calls, Partner, fields_of, parse
from unit.test_blame import ALL_REDUCE, caller, counted

Act = tuple[object, ...]  # see CODES: with the peer, channel and stream; or into NCCL: "all", or "pair" of the last two
Program = Callable[[int], Sequence[Act]]
CODES = {"signal": SIGNAL, "wait": WAIT, "read": READ}


def peers(ranks: int, program: Program, graphs: Iterable[int] = ()) -> Callers:
    """Return a job of one group of peers and one communicator. `graphs`: ranks that captured some call of peers."""
    processes = []
    for rank in range(ranks):
        made: dict[object, list[Call]] = {"all": [], "pair": []}
        transfers: list[Call] = []
        totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for turn, (name, *given) in enumerate(program(rank), start=1):
            if name in made:
                made[name].append(Call(len(made[name]), ALL_REDUCE, 1024, -1, turn, len(made[name]) + 1))
                continue
            peer, channel, stream = (int(str(each)) for each in (*given, 0, 0)[:3])
            root = peer if name == "read" else peer + ranks * (channel + 1)
            totals[root][name != "signal"] += 1
            transfers.append(Call(len(transfers), CODES[str(name)], 0, root, turn, stream, 1))
        group = counted("peers", 0, rank, ranks, [])._replace(
            transfers=len(transfers),
            transfers_returned=len(transfers),
            is_crowded=rank in graphs,
            last_transfers=tuple(transfers[-128:]),
            peers=tuple(Partner(root, *both) for root, both in totals.items()),
        )
        parts = {"peers": group, "world": counted("world", 1, rank, ranks, made["all"])}
        if rank >= ranks - 2:
            parts["pair"] = counted("pair", 2, rank - ranks + 2, 2, made["pair"])
        processes.append(caller(rank, parts))
    return Callers(processes, {})


def stand(job: Callers) -> list[tuple[int | None, str]]:
    """Return which rank stands where."""
    return [(wait.process.rank, semaphores.told(wait)) for wait in waits(job) if wait.step.is_semaphore]


def ring(wrong: Iterable[int], ranks: int = 4, rounds: int = 2) -> Program:
    """Return the program of a ring, in which some ranks read by the call that sends no signal."""

    def program(rank: int) -> list[Act]:
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        get: list[Act] = [("read", left)] if rank in wrong else [("wait", left), ("signal", left)]
        step: list[Act] = [("signal", right), *get, ("wait", right)]
        return [("all",), *step * rounds, *([("all",)] if wrong == () else [])]

    return program


def test_a_program_in_which_every_signal_was_sent_waits_nowhere() -> None:
    """However often it goes around, also when the first calls are not remembered."""
    assert waits(peers(4, ring(()))) == []
    assert waits(peers(4, ring((), rounds=100))) == []


@pytest.mark.parametrize("wrong", range(4))
def test_one_that_sends_no_signal_is_named_first(wrong: int) -> None:
    """Whoever waits for it comes to no barrier, and the others wait there: nobody of them is to blame."""
    owner = (wrong - 1) % 4

    def program(rank: int) -> list[Act]:
        return [*ring((wrong,))(rank)[:-1][: 5 if rank != wrong else 4], *([("all",)] if rank != owner else [])]

    (found,) = blame.findings(peers(4, program))
    assert found.ranks == (wrong, owner)
    stands = f"rank {owner} waits in PeerGroup.wait for signal 1 of rank {wrong} (rank {wrong} sent none, and read"
    assert f"{stands} a tensor of rank {owner} by PeerTensor.get()" in found.message
    assert f"rank {wrong} went on to its 2nd call" in found.message


def test_signals_behind_waits_for_each_other() -> None:
    """Both were called. On streams of their own, nothing tells that they stand."""
    both = lambda *on: peers(2, lambda rank: [("wait", 1 - rank, 0, on[0]), ("signal", 1 - rank, 0, on[1])])  # noqa: E731
    assert stand(both(0, 0)) == [
        (0, "PeerGroup.wait for signal 1 of rank 1 (called by rank 1, behind other work)"),
        (1, "PeerGroup.wait for signal 1 of rank 0 (called by rank 0, behind other work)"),
    ]
    assert len(stand(both(7, 7))) == 2
    assert stand(both(7, 0)) == stand(both(7, 8)) == []


def test_a_wait_on_another_stream_holds_up_no_call_into_nccl() -> None:
    """The default stream, and the calls into NCCL, go on beside it; the wait stands all the same."""
    job = peers(2, lambda rank: [("wait", 1, 0, 7), ("all",)] if rank == 0 else [("all",)])
    assert stand(job) == [(0, "PeerGroup.wait for signal 1 of rank 1 (rank 1 sent none)")]
    assert len(waits(job)) == 1


def test_a_collective_that_goes_on_beside_holds_up_no_signal() -> None:
    """With async_op=True: rank 1 waits for a signal behind a collective to which it comes later. Nobody hangs."""
    programs: list[list[Act]] = [[("all",), ("signal", 1)], [("wait", 0), ("all",)]]
    job = peers(2, programs.__getitem__)
    assert stand(job) == []
    assert blame.findings(job) == []


def test_who_does_not_come_to_a_collective_is_named_and_not_who_waits_for_a_signal_behind_it() -> None:
    """Rank 1 waits in NCCL for rank 2. Whether its signal to rank 0 waits, too, nobody knows."""
    programs: list[list[Act]] = [[("wait", 1)], [("pair",), ("signal", 0)], []]
    job = peers(3, programs.__getitem__)
    assert stand(job) == []
    (found,) = blame.findings(job)
    assert found.ranks == (2, 1)


def test_a_second_signal_waits_until_the_first_was_waited_for() -> None:
    """The first does not, nor does one on another channel."""
    job = peers(2, lambda rank: [("signal", 1), ("signal", 1, 5), ("signal", 1)] if rank == 0 else [("all",)])
    assert stand(job) == [(0, "PeerGroup.signal to rank 1, which has not waited for signal 1 yet (it called no waits)")]


def test_a_read_that_was_followed_by_a_signal_is_no_fault() -> None:
    """Rank 0 read once by the call without a signal, and sent it itself. Later rank 1 forgets one."""
    programs: list[list[Act]] = [
        [("read", 1), ("signal", 1), ("wait", 1), ("wait", 1)],
        [("wait", 0), ("signal", 0), ("wait", 0)],
    ]
    job = peers(2, programs.__getitem__)
    assert semaphores.readers(waits(job)) == []


def test_channels_go_by_themselves() -> None:
    """A signal on one channel is none on another, and their order does not matter where the signals were sent."""
    sent = [("signal", 1, 0), ("signal", 1, 1)]
    assert stand(peers(2, lambda rank: sent if rank == 0 else [("wait", 0, 1), ("wait", 0, 0)])) == []
    assert stand(peers(2, lambda rank: sent if rank == 0 else [("wait", 0, 1), ("wait", 0, 2)])) == [
        (1, "PeerGroup.wait for signal 1 of rank 0 on channel 2 (rank 0 sent none)")
    ]


def test_of_a_rank_whose_graphs_have_signals_nothing_is_said() -> None:
    """Only the replays tell how many there were."""
    job = lambda graphs: peers(2, lambda rank: [("wait", 0)] if rank else [], graphs)  # noqa: E731
    assert stand(job([])) != []
    assert stand(job([0])) == []


def test_a_line_of_the_log_tells_the_same() -> None:
    """Stream, channel and reads survive; a communicator is no group of peers."""
    calls = peers(2, ring((1,), ranks=2)).processes[1].parts
    read: Calls | None = parse(fields_of(calls["peers"]))
    assert read is not None
    assert read._replace(ended=False) == calls["peers"]._replace(digest=read.digest)
    assert (read.is_of_peers, calls["world"].is_of_peers) == (True, False)
    assert [call.what for call in read.last_transfers].count(READ) == 2


def test_the_watch_tells_each_wait_and_names_the_group() -> None:
    """Waits for different ranks are different lines, though all wait for a first signal."""
    hangs = live_waits._hangs(peers(3, ring((0, 1, 2), ranks=3)), dict.fromkeys("abc", 20.0))
    assert {hang.group for hang in hangs} == {"PeerGroup (ranks 0, 1, 2)"}
    assert hangs[0].is_cause
    hangs.sort(key=lambda hang: hang.waiting)
    assert [(hang.waiting, hang.missing) for hang in hangs] == [
        ([f"rank {rank}"], [f"rank {(rank + 1) % 3}"]) for rank in range(3)
    ]
    read = "read a tensor of rank 0 by PeerTensor.get(), which sends no signal"
    assert hangs[0].call == f"PeerGroup.wait for signal 1 of rank 1 (rank 1 sent none, and {read})"


def test_a_damaged_line_that_has_a_signal_among_its_collectives_is_no_wait() -> None:
    """Nothing is known of such a call."""
    job = peers(2, lambda _: [])
    for process in job.processes:
        call = Call(0, SIGNAL, 0, 1 - int(process.rank or 0), 1, 1, 1)
        process.parts["world"] = process.parts["world"]._replace(collectives=1, last=(call,))
    assert waits(Callers(job.processes, {})) == []

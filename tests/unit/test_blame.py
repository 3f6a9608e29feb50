"""Who is to blame, of jobs that are made up: who waits for whom, and whose program is another one."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tracehook.audit import blame, order
from tracehook.audit.called import Caller, Callers, see_until_now
from tracehook.audit.finding import Finding, in_order
from tracehook.audit.waits import waits
from tracehook.log.calls import RECV, SEND, Call, Calls, Making, Partner

ALL_REDUCE = 7 << 8
SECOND = 10**9
Program = Callable[[int], Iterable[str]]  # the groups that a rank calls, in its order


def job(ranks: int, groups: dict[str, list[list[int]]], program: Program) -> Callers:
    """Return the processes of a job that a scheduler ended."""
    processes = []
    for rank in range(ranks):
        made: dict[str, list[Call]] = defaultdict(list)
        for turn, name in enumerate(program(rank), start=1):
            made[name].append(Call(len(made[name]), ALL_REDUCE, 1024, -1, turn, len(made[name]) + 1))
        parts = {}
        for role, (name, each) in enumerate(groups.items(), start=1):
            members = next(members for members in each if rank in members)
            comm, calls = f"{name}{members[0]}", made[name]
            parts[comm] = counted(comm, role, members.index(rank), len(members), calls)
        processes.append(caller(rank, parts))
    return Callers(processes, {})


def counted(comm: str, role: int, rank: int, size: int, calls: list[Call]) -> Calls:
    """Return what a communicator was called for."""
    return Calls(
        comm=comm,
        comm_id=role,
        rank=rank,
        size=size,
        adopted=False,
        aborted=False,
        ended=False,
        collectives=len(calls),
        collectives_returned=len(calls),
        transfers=0,
        transfers_returned=0,
        digest=calls[-1].digest if calls else 0,
        is_crowded=False,
        moved_ns=SECOND,
        born_ns=0,
        peers=(),
        last=tuple(calls[-256:]),
        last_transfers=(),
    )


def caller(rank: int, parts: dict[str, Calls]) -> Caller:
    """Return a process that another one ended by SIGTERM."""
    return Caller(
        number=rank,
        rank=rank,
        pid=1000 + rank,
        ended=False,
        how=None,
        exception=None,
        signal=15,
        sender=1,
        ended_ns=10 * SECOND,
        last_event="register.local",
        shift_ns=0,
        parts=parts,
    )


def pairs(ranks: int) -> dict[str, list[list[int]]]:
    """Return the groups of a job: the world, and two of each pair of neighbours."""
    neighbours = [[first, first + 1] for first in range(0, ranks, 2)]
    return {"world": [list(range(ranks))], "tp": neighbours, "cp": neighbours}


def stopped_early() -> Callers:
    """Return a job of four ranks of which rank 3 made half of the calls."""
    return job(4, pairs(4), lambda rank: ["tp", "world"] * (1 if rank == 3 else 2))


def test_of_a_thousand_ranks_the_one_that_skipped_a_call_is_named():
    """All others wait, directly or not; the analysis asks no rank about each other one."""
    ranks, culprit = 1024, 5
    groups = {
        "world": [list(range(ranks))],
        "tp": [list(range(first, first + 8)) for first in range(0, ranks, 8)],
        "dp": [list(range(place, ranks, 8)) for place in range(8)],
    }

    def program(rank: int) -> list[str]:
        step = [*["tp"] * 8, "dp", "world"]
        last = [*["tp"] * (7 if rank == culprit else 8), "dp", "world"]
        return step * 17 + last

    (finding,) = blame.findings(job(ranks, groups, program))
    assert (finding.rule, finding.ranks[0]) == ("rank-missing", culprit)
    assert "rank 5 came to 143 calls, ranks 0, 1, 2, 3, 4, 6 and 7 wait in the 144th" in finding.message


def ahead(made: Callers, rank: int, since: int, said: int = 2) -> None:
    """Let the device of a rank not have come to its calls from a place in its order on."""
    process = made.processes[rank]
    process.parts = {
        comm: calls._replace(
            last=tuple(call._replace(place=1 | said if call.order >= since else 1) for call in calls.last)
        )
        for comm, calls in process.parts.items()
    }


def test_a_device_that_stands_before_more_calls_than_have_marks_may_be_that_of_another_rank():
    """Rank 1's device runs a kernel without end before its second call, and 72 calls are behind it."""
    groups = {"left": [[0, 1], [2]], "right": [[1, 2], [0]]}
    calls = {0: ["left"] * 70, 1: ["right", *["left"] * 70, "right", "right"], 2: ["right"] * 3}
    made = job(3, groups, calls.__getitem__)
    ahead(made, 2, 3)
    ahead(made, 1, 10, said=4)
    (finding,) = blame.findings(Callers(made.processes, {}))
    assert finding.ranks == (2, 1)
    assert "nobody knows where the device of rank 1 stands, many calls behind" in finding.message
    assert "cannot tell which of them is wrong" in finding.message


def test_a_device_of_which_nothing_newer_is_known_stands_nowhere():
    """Its program went on since: what was seen is over."""
    made = job(4, pairs(4), lambda _: ["tp", "cp", "world", "tp"])
    ahead(made, 2, 3)
    part = made.processes[2].parts["tp2"]
    made.processes[2].parts["tp2"] = part._replace(last=tuple(call._replace(place=1) for call in part.last))
    assert blame.findings(Callers(made.processes, {})) == []


@pytest.mark.parametrize(("alive", "told"), [(9, False), (2, True)])
def test_a_process_that_stood_still_before_it_was_killed_may_have_been_stopped(alive, told):
    """The others lived on: a launcher ends them when one dies, but not when one is stopped."""
    made = stopped_early()
    made.processes[3].signal = made.processes[3].sender = None
    made.processes[3].alive_ns = made.processes[3].ended_ns = alive * SECOND
    (finding, *_) = blame.findings(made)
    assert (finding.rule, finding.ranks) == ("rank-failed", (3,))
    assert ("a stop (SIGSTOP): the others lived 8 s longer" in finding.message) == told


@pytest.mark.parametrize("killed_by_a_server", [True, False])
def test_a_rank_that_died_or_stood_still_does_not_compute(killed_by_a_server: bool) -> None:
    """A server kills what waited for it, so nobody ended in order; or the thread of a log stood still until the end."""
    made = stopped_early()
    made.processes[3].alive_ns = 2 * SECOND
    told = ["no thread of Python ran, because code in C kept the GIL"]
    if killed_by_a_server:
        made.processes[3].ended_ns = 2 * SECOND
        for process in made.processes:
            process.signal = process.sender = None
        told = ["something killed it (SIGKILL) or stopped it (SIGSTOP), or code in C kept the GIL"]
        told += ["another rank lived 8 s longer"]
    (finding,) = blame.findings(made)
    assert (finding.rule, finding.ranks[0]) == ("rank-missing", 3)
    assert all(words in finding.message for words in told)
    assert "it computes" not in finding.message


def test_a_last_call_that_was_not_counted_is_not_named():
    """Of a rank with more communicators than are counted at a time, nobody knows what it called last."""
    made = stopped_early()
    made.processes[3].uncounted = 23
    (finding,) = blame.findings(made)
    assert finding.ranks[0] == 3
    assert "rank 3 made no other call that was counted" in finding.message
    told = "its last call is not known, because the calls of 23 of its communicators were not counted"
    assert told in finding.message
    assert "computes" not in finding.message


@pytest.mark.parametrize(("after", "named"), [(SECOND // 5, []), (30 * SECOND, [3])])
def test_a_wait_that_had_just_begun_when_another_rank_failed_is_no_hang(after, named):
    """In every moment of a job somebody waits for somebody; whoever waits longer waits for a reason."""
    found = stopped_early()
    found.processes[0].how = "exception"
    found.processes[0].ended_ns = SECOND + after
    assert [finding.ranks[0] for finding in blame.findings(found)] == named


def test_a_culprit_comes_before_the_waits_that_a_rehearsal_saw():
    """It sees who waits for whom, and the most telling wait first; the calls before tell who is wrong."""
    step = ["tp", "cp", "tp", "cp", "world"]
    circle = job(6, pairs(6), lambda rank: step + (["cp", "tp"] if rank == 3 else ["tp", "cp"]))
    seen = [Finding("ranks-hung", "error", "", (2, 3), None, None, SECOND // 2 + place, None) for place in range(2)]

    def told(made: Callers) -> list[Finding]:
        concluded = blame.findings(made)
        return in_order([*order.before_hangs(seen, concluded), *concluded])

    named, first, second = told(circle)
    assert (named.rule, named.ranks[0]) == ("rank-missing", 3)
    assert second.ns == (first.ns or 0) + 1
    assert (first.rule, second.rule) == ("ranks-hung", "ranks-hung")


def test_the_waits_that_a_rehearsal_saw_stay_first_if_the_calls_name_nobody():
    """Ranks ran too far ahead, or have no log."""
    seen = [Finding("ranks-hung", "error", "", (2, 3), None, None, SECOND // 2, None)]
    nobody = Finding("rank-missing", "error", "", (), None, None, SECOND, None)
    assert order.before_hangs(seen, [nobody]) == order.before_hangs(seen, []) == seen


def test_a_hang_comes_after_the_refused_call_that_caused_it():
    """A rehearsal notices it at once, and says so of each rank a moment later; another hang stays where it is."""
    hang = Finding("ranks-hung", "error", "", (2,), "tp", None, SECOND, None)
    refused = Finding("rule-broken", "error", "", (0,), "tp", None, SECOND + 5, None)
    assert [each.ns for each in order.after_refusals([hang, refused])] == [SECOND + 6, SECOND + 5]
    assert order.after_refusals([replace(hang, comm="cp"), refused])[0].ns == SECOND
    assert order.after_refusals([replace(hang, ns=2 * SECOND), refused])[0].ns == 2 * SECOND


def test_a_rank_in_a_function_of_torch_comes_after_one_that_is_in_none():
    """It may wait for that one there, without NCCL: both are at the end of a chain."""
    made = job(4, {"tp": [[0, 1], [2, 3]]}, lambda rank: ["tp"] * (3 + (rank % 2)))
    found = blame.findings(made)
    assert [each.ranks[0] for each in in_order(order.who_waits_last(made, found))] == [0, 2]
    in_group_calls(made, {0: "recv"})
    assert [each.ranks[0] for each in in_order(order.who_waits_last(made, found))] == [2, 0]


def test_calls_that_differ_come_before_the_refusal_of_each_call():
    """Of two ranks a rehearsal names the one that is first to hear of it, and the calls cannot tell who is wrong."""
    seen = [Finding("rule-broken", "error", "", (0,), "tp", None, SECOND, None)]
    differ = Finding("calls-differ", "error", "", (0, 1), "tp", None, 2 * SECOND, None)
    elsewhere = replace(differ, comm="cp")
    assert [each.ns for each in order.before_refusals(seen, [differ, elsewhere])] == [SECOND - 1, 2 * SECOND]
    assert order.before_refusals([], [differ]) == [differ]


@pytest.mark.parametrize(("ranks", "named"), [(4, (0, 1, 2, 3)), (2, (1, 0))])
def test_of_a_call_that_most_ranks_ended_without_the_few_that_made_it_are_named(ranks, named):
    """As rank 0 alone saves a checkpoint. Of two ranks the one that ended may have ended too early."""
    made = job(ranks, pairs(ranks), lambda rank: ["world"] * (3 if rank else 4))
    (finding,) = blame.findings(ended(made, range(1, ranks)))
    assert (finding.rule, finding.ranks) == ("rank-missing", named)
    if ranks > 2:
        assert "rank 0 waits in the 4th call, all_reduce of 1,024 float32, sum" in finding.message
        assert "; ranks 1, 2 and 3, which are more, made 3 calls and ended in order" in finding.message


def ended(made: Callers, ranks: Iterable[int]) -> Callers:
    """Let some ranks end in order."""
    for rank in ranks:
        made.processes[rank].ended, made.processes[rank].how = True, "exit"
        made.processes[rank].signal = made.processes[rank].sender = None
    return Callers(made.processes, {})


@pytest.mark.parametrize(
    ("calls", "named", "told"),
    [
        ([4, 3, 3, 3], (0, 1), "rank 1 made 3 calls and ended in order, as 3 ranks did"),  # rank 0 made one more
        ([4, 3, 4, 4], (1, 0), "rank 1 ended in order without it"),  # rank 1 made one fewer
    ],
)
def test_of_a_pair_the_rank_is_named_that_made_another_number_of_calls_than_ranks_of_the_same_program(
    calls: list[int], named: tuple[int, ...], told: str
) -> None:
    """All but one of the four have ended in order."""
    made = job(4, {"tp": [[0, 1], [2, 3]]}, lambda rank: ["tp"] * calls[rank])
    (finding,) = blame.findings(ended(made, (1, 2, 3)))
    assert (finding.rule, finding.ranks) == ("rank-missing", named)
    assert told in finding.message


def test_a_rank_that_left_by_os_exit_is_not_said_to_compute() -> None:
    """It made one call fewer than the other ranks, which ended in order or wait for it."""
    made = job(4, {"tp": [[0, 1], [2, 3]]}, lambda rank: ["tp"] * (3 if rank == 1 else 4))
    made.processes[1].how, made.processes[1].signal, made.processes[1].sender = "os._exit", None, None
    made.processes[1].status = 0
    (finding,) = blame.findings(ended(made, (2, 3)))
    assert finding.ranks[0] == 1
    assert finding.message.endswith("rank 1 ended by os._exit, or exit of C, without it")


def test_if_no_other_ranks_ran_the_same_program_the_calls_of_a_pair_cannot_tell() -> None:
    """Rank 0 may have made one call more, or rank 1 one fewer."""
    groups = {"tp": [[0, 1], [2, 3]], "cp": [[0, 1], [2, 3]]}
    made = job(4, groups, lambda rank: ["cp"] if rank > 1 else ["tp"] * (4 - rank))
    (finding,) = blame.findings(ended(made, (1, 2, 3)))
    assert (finding.rule, finding.ranks) == ("rank-missing", (0, 1))
    assert "their calls cannot tell which of them is wrong" in finding.message


def in_group_calls(made: Callers, functions: dict[int, str]) -> Callers:
    """Let the stacks of some ranks say that their hosts are in functions of torch.distributed."""
    for rank, function in functions.items():
        made.processes[rank].group_call = function
    return made


@pytest.mark.parametrize(
    ("calls", "functions", "culprit", "told"),
    [
        ((3, 3, 4, 3), {0: "barrier", 1: "barrier", 3: "barrier"}, 2, "wait in barrier, and rank 2 did not come there"),
        ((4, 4, 3, 4), {2: "barrier"}, 2, "went on to its barrier of torch.distributed, outside of NCCL"),
        ((3, 4, 3, 3), {0: "all_gather", 3: "all_gather"}, 2, "rank 2 made no other call"),
    ],
)
def test_ranks_that_wait_without_nccl_are_part_of_the_chain(calls, functions, culprit, told):
    """As in a barrier of Gloo, or a checkpoint that only some ranks save: who waits there is not at its end."""
    made = in_group_calls(job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * calls[rank]), functions)
    (finding,) = blame.findings(made)
    assert finding.ranks[0] == culprit
    assert told in finding.message


def test_of_two_ranks_one_of_which_waits_without_nccl_both_are_named():
    """One forgot the barrier, or the other one the collective."""
    made = in_group_calls(job(2, {"world": [[0, 1]]}, lambda rank: ["world"] * (3 + rank)), {0: "barrier"})
    (finding,) = blame.findings(made)
    assert set(finding.ranks) == {0, 1}
    assert "their calls cannot tell which of them is wrong" in finding.message


@pytest.mark.parametrize(("groups", "named"), [([[0, 1]], {0, 1}), ([], {0}), ([[0, 2, 3], [0, 1]], {0, 1})])
def test_who_waits_without_nccl_waits_for_its_group(groups, named):
    """Of its groups, the one in which the fewest are missing: else innocent ranks would have to come, too."""
    made = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * (3 + (rank > 0)))
    in_group_calls(made, {0: "barrier"}).processes[0].groups = [(ranks, False) for ranks in groups]
    (finding,) = blame.findings(made)
    assert set(finding.ranks) >= named
    assert ("cannot tell" in finding.message) == (len(named) > 1)
    assert "for rank 1 " in finding.message if groups else "for ranks 1, 2 and 3" in finding.message


@pytest.mark.parametrize(
    ("calls", "functions", "named"),
    [
        ((3, 4), {0: "recv"}, {0, 1}),
        ((3, 4, 4), {0: "recv"}, {0, 1, 2}),
        ((3, 3, 4), {0: "recv", 1: "send"}, {2}),
        ((3, 4, 3), {0: "send"}, {2}),
    ],
)
def test_who_receives_without_nccl_is_not_the_only_one_that_may_be_wrong(calls, functions, named):
    """A rank forgot to send, and went on to a collective: that one may be wrong, and so may the one that receives."""
    made = job(len(calls), {"world": [list(range(len(calls)))]}, lambda rank: ["world"] * calls[rank])
    (finding,) = blame.findings(in_group_calls(made, functions))
    assert set(finding.ranks) >= named
    assert ("cannot tell" in finding.message) == (len(named) > 1), finding.message
    assert finding.ranks[0] in named


@pytest.mark.parametrize(
    ("agreeing", "calls", "culprit", "told"),
    [
        (
            {0, 1, 3},
            (3, 3, 3, 3),
            2,
            "ranks 0, 1 and 3 wait in an agreement of tracehook, and rank 2 did not come there",
        ),
        ({3}, (4, 4, 3, 3), 2, "rank 2 made no other call"),
        ({0, 1, 2, 3}, (3, 3, 3, 3), None, ""),
    ],
)
def test_who_waits_in_an_agreement_waits_for_those_of_the_communicator_who_do_not(agreeing, calls, culprit, told):
    """As at the end of a scope: the ranks agree before NCCL is called, so no call waits."""
    made = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * calls[rank])
    for rank in agreeing:
        made.processes[rank].agreeing = set(made.processes[rank].parts)
    assert [finding.ranks[0] for finding in blame.findings(made)] == ([culprit] if culprit is not None else [])
    assert told in "".join(finding.message for finding in blame.findings(made))


def test_a_rank_whose_calls_were_not_all_counted_may_wait_in_nccl():
    """It is in a barrier, which may be one of a communicator that nobody counted."""
    made = in_group_calls(job(3, {"world": [[0, 1, 2]]}, lambda rank: ["world"] * (3 + (rank == 2))), {0: "barrier"})
    made.processes[0].uncounted = 1
    (finding,) = blame.findings(made)
    assert finding.ranks == (0, 1, 2)
    assert "cannot tell which of them is wrong" in finding.message


def test_a_server_that_waits_for_work_without_nccl_hangs_for_nobody():
    """Its ranks wait for the first one, which waits for requests: no rank waits in NCCL."""
    made = in_group_calls(job(3, {"world": [[0, 1, 2]]}, lambda _: ["world"] * 3), {1: "broadcast", 2: "broadcast"})
    assert blame.findings(made) == []


@pytest.mark.parametrize(("interrupted_ns", "named"), [(20 * SECOND, [2]), (SECOND + 1, [])])
def test_who_is_interrupted_by_control_c_in_a_hang_is_still_who_hangs(interrupted_ns, named):
    """Only it can hear it: the others wait in NCCL until the launcher kills them, which is no fault of theirs.

    If nobody waited before, Control-C is all that happened.
    """
    made = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * (3 if rank == 2 else 4))
    for process in made.processes:
        process.signal = process.sender = None
        process.ended_ns = process.alive_ns = 50 * SECOND
    who = made.processes[2]
    who.ended, who.how, who.exception, who.ended_ns = True, "exception", "KeyboardInterrupt", interrupted_ns
    assert [(each.rule, each.ranks[0]) for each in blame.findings(made)] == [("rank-missing", rank) for rank in named]


@pytest.mark.parametrize(("after", "told"), [(-SECOND, True), (5 * SECOND, False)])
def test_who_destroyed_the_communicator_before_does_not_merely_compute(after, told):
    """What it destroyed at its end is no cause."""
    made = job(3, {"world": [[0, 1, 2]]}, lambda rank: ["world"] * (3 if rank == 1 else 4))
    made.processes[1].destroyed_ns["world0"] = SECOND + after
    (finding,) = blame.findings(made)
    assert ("before, it destroyed this communicator" in finding.message) == told


def test_of_a_job_that_runs_nobody_was_last_seen():
    """It waits so far; and a process that is there was not killed."""
    made = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * (3 if rank == 2 else 4))
    for process in made.processes:
        process.signal, process.runs = None, True
        process.alive_ns = process.ended_ns = SECOND if process.rank == 2 else 10 * SECOND
    see_until_now(made.processes)
    (finding,) = blame.findings(made)
    assert finding.message.count("for 9.0 s so far") == 2
    assert "no thread of Python ran for 9 s: it was stopped (SIGSTOP), or C code keeps the GIL" in finding.message
    assert "last seen" not in finding.message


def test_a_device_would_go_on_behind_the_call_in_which_it_waits():
    """Rank 2 exchanged with rank 0, and not with rank 1. If rank 0 had come, rank 1 would still wait for rank 2.

    For rank 2 would wait for rank 1 then, in the call behind, to which its device has not come.
    """
    groups = {"world": [[0, 1, 2, 3]], "one": [[0, 2], [1, 3]], "other": [[1, 2], [0, 3]]}
    own = {1: ["other"], 2: ["one"]}
    made = job(4, groups, lambda rank: ["world", *own.get(rank, []), "world"])
    for rank in range(4):
        ahead(made, rank, 3)
    (finding,) = blame.findings(Callers(made.processes, {}))
    assert finding.ranks[0] == 2
    assert "cannot tell" not in finding.message


@pytest.mark.parametrize("skipped", [3, 7, 12])
@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("kept", [256, 64])
def test_who_skipped_a_call_is_named_unless_others_have_run_too_far_ahead(skipped, blocked, kept):
    """Programs run ahead of their devices, and may no longer remember the calls in which those wait.

    Rank 2 leaves out one all_reduce of a second group. Rank 0 alone may look at the result of each, and then stands
    still. Then it made the fewest calls, and nothing else is known of the calls between.
    """
    groups = {"world": [[0, 1, 2, 3]], "metrics": [[0, 1, 2, 3]]}

    def program(rank: int) -> list[str]:
        steps = skipped + 1 if blocked and rank == 0 else 30
        left_out = [skipped] if rank == 2 else []
        return [name for step in range(steps) for name in [*["world"] * 9, *["metrics"] * (step not in left_out)]]

    found = job(4, groups, program)
    for process in found.processes:
        process.parts = {comm: calls._replace(last=calls.last[-kept:]) for comm, calls in process.parts.items()}
    (finding,) = blame.findings(Callers(found.processes, {}))
    assert finding.rule == "rank-missing"
    if kept == 256:
        assert finding.ranks[0] == 2
        assert f"rank 2 came to {skipped} calls, ranks 0, 1 and 3 wait in the {skipped + 1}" in finding.message
    else:
        assert "cannot tell" in finding.message
        assert finding.ranks in ((), (0, 1, 2, 3))


def test_calls_of_two_threads_with_one_place_are_both_there():
    """The places are taken without a lock."""
    parts = {
        name: counted(name, role, 0, 2, [Call(0, ALL_REDUCE, 1, -1, 1, 1)]) for role, name in enumerate(("tp", "cp"))
    }
    assert [step.comm for step in caller(0, parts).in_order] == ["tp", "cp"]


def making(rank: int, size: int, key: str, parent: str, child: int = 0) -> Calls:
    """Return a communicator that NCCL is making."""
    return counted(key, 0, rank, size, [])._replace(making=Making(7, child, parent))


def test_who_waits_where_a_communicator_is_made_for_a_rank_that_nobody_knows_is_not_named_alone():
    """As in the first send to another rank: that rank went on to a collective, or any of the others did."""
    found = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * (3 + (rank > 0)))
    found.processes[0].making.append(making(0, 2, "pair", ""))
    (finding,) = blame.findings(Callers(found.processes, {}))
    assert set(finding.ranks) == {0, 1, 2, 3}
    assert "rank 0 waits for 1 of ranks 1, 2 and 3 in the making of a communicator" in finding.message
    found.processes[0].making[:] = [making(0, 3, "three", "")]
    found.processes[0].groups = [([0, 2, 3], True), ([0, 2, 3], False), ([1, 2, 3], True)]
    for rank in (2, 3):
        found.processes[rank].making.append(making(1 + (rank == 3), 3, "three", ""))
    found.processes[3].making.clear()
    assert all("1 and" not in finding.message for finding in blame.findings(Callers(found.processes, {})))


@pytest.mark.parametrize("parent", ["world0", ""], ids=["split", "init"])
def test_who_does_not_come_to_where_a_communicator_is_made_is_named(parent):
    """Of a split all ranks of the parent; without a parent those that lie between the ranks that came."""
    found = job(4, pairs(4), lambda _: ["tp", "cp", "world"])
    for rank in (0, 1, 3):
        found.processes[rank].making.append(making(rank, 4, "made", parent))
    (finding,) = blame.findings(Callers(found.processes, {}))
    assert finding.ranks == (2, 0, 1, 3)
    assert "ranks 0, 1 and 3 wait in the making of a communicator, and rank 2 did not come there" in finding.message
    assert "(ranks )" not in finding.message


def test_who_is_missing_is_not_guessed():
    """Of a communicator of three, of which ranks 0 and 3 came, either of the others may be the third."""
    found = job(4, pairs(4), lambda _: ["tp", "cp", "world"])
    for rank, place in ((0, 0), (3, 2)):
        found.processes[rank].making.append(making(place, 3, "made", ""))
    (finding,) = blame.findings(Callers(found.processes, {}))
    assert finding.ranks == (1, 2, 0, 3)
    assert "ranks 0 and 3 wait for 1 of ranks 1 and 2 in the making of a communicator" in finding.message
    assert "cannot tell which of them is wrong" in finding.message


def test_a_call_behind_one_that_waits_was_not_reached():
    """A rank has made its receive, but stands in a send before it; the chain leads to the rank that made no call."""
    groups = {"ring": [[0, 1, 2]]}
    made = job(3, groups, lambda _: [])
    for rank, acts in enumerate([["send 1"], ["send 2", "recv 0"], []]):
        calls = made.processes[rank].parts["ring0"]
        last = [
            Call(number, {"send": SEND, "recv": RECV}[kind] | ALL_REDUCE, 1, int(peer), number + 1, 0, 1)
            for number, (kind, peer) in enumerate(act.split() for act in acts)
        ]
        peers = [Partner(peer, f"send {peer}" in acts, f"recv {peer}" in acts) for peer in range(3)]
        made.processes[rank].parts["ring0"] = calls._replace(
            transfers=len(last), last_transfers=tuple(last), peers=tuple(peers)
        )
    job_ = Callers(made.processes, {})
    assert [(wait.process.rank, [each.rank for each in wait.missing]) for wait in waits(job_)] == [(0, [1]), (1, [2])]
    assert [finding.ranks[0] for finding in blame.findings(job_)] == [2]


def stopped(ranks: int, said: int = 2, still: float = 8.0, of_last: int = 4) -> Callers:
    """Return a job in which no device has come to the second call, and all were ended after some seconds.

    `of_last`: how many calls the last rank made; the others make four.
    """
    made = job(ranks, {"world": [list(range(ranks))]}, lambda rank: ["world"] * (of_last if rank == ranks - 1 else 4))
    for rank, process in enumerate(made.processes):
        ahead(made, rank, 2, said)
        process.signal, process.sender, process.ended_ns = 15, 1, (process.moved_ns or 0) + int(still * 1e9)
    return Callers(made.processes, {})


@pytest.mark.parametrize("ranks", [1, 4])
def test_devices_that_all_stand_before_one_call_are_told(ranks):
    """No rank waits for another one, and no rank did something else than the others."""
    (finding,) = blame.findings(stopped(ranks))
    assert (finding.rule, finding.ranks, finding.divergence) == ("rank-missing", tuple(range(ranks)), "never")
    assert "made the 2nd call of" in finding.message
    assert ("its device has not come" if ranks == 1 else "their devices have not come") in finding.message
    assert "cannot tell" not in finding.message


def test_a_device_that_stands_before_all_remembered_calls_may_stand_before_a_forgotten_one():
    """The log keeps the last calls only, and fewer of a communicator that ended."""
    made = stopped(4)
    for process in made.processes:
        process.parts = {comm: calls._replace(last=calls.last[2:]) for comm, calls in process.parts.items()}
    (finding,) = blame.findings(Callers(made.processes, {}))
    assert "too many to know where" in finding.message
    assert "cannot tell which of them is wrong" in finding.message


def test_devices_that_stood_for_a_moment_are_not_told():
    """An operator may end a job at any time: a kernel may take a while."""
    assert blame.findings(stopped(4, still=3)) == []


def test_a_device_that_stands_beside_a_rank_that_works_on_is_not_told():
    """That rank may be about to make the call, too."""
    assert blame.findings(stopped(4, of_last=1)) == []


def two_that_did_not_come(apart_ns: int = 0) -> Callers:
    """Return a job of four: ranks 1 and 2 made one call and waited nowhere since, the others wait in the second one."""
    found = job(4, {"world": [[0, 1, 2, 3]]}, lambda rank: ["world"] * (1 if rank in (1, 2) else 2))
    late = found.processes[2]
    late.parts = {comm: calls._replace(moved_ns=calls.moved_ns + apart_ns) for comm, calls in late.parts.items()}
    return Callers(found.processes, {})


def test_of_two_that_stopped_at_the_same_moment_neither_is_named_alone():
    """One of them may wait for the other one outside of NCCL, as in a wait for a key of a store."""
    (found,) = blame.findings(two_that_did_not_come())
    assert (found.rule, found.ranks) == ("rank-missing", (1, 2, 0, 3))
    assert "ranks 0 and 3 wait for ranks 1 and 2" in found.message
    assert "cannot tell which of them is wrong" in found.message


def test_of_two_that_stopped_at_other_moments_each_is_named():
    """The first one that stopped comes first."""
    found = in_order(blame.findings(two_that_did_not_come(apart_ns=2 * SECOND)))
    assert [each.ranks[0] for each in found] == [1, 2]

"""Which registrations the emulated NCCL uses, which it cannot, and what ranks that differ in that hear."""

import pytest
from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

MB = 1 << 20
SIZE = 8 * MB
IN_EFFECT = 0x20
OLD, NEW = "22809", "23007"
USED_BY = {"gather", "broadcast", "message", "exchange"}


def play(scene: str, *arguments: str, version: str = OLD, **env: str) -> Rehearsal:
    """Run one scene on two ranks."""
    changes = {"TRACEHOOK_EMU_NCCL_VERSION": version, **env}
    return rehearse("registered.py", scene, *arguments, ranks=2, env=changes, timeout=40)


def said_at_the_end(*scene: str) -> list[str]:
    """Return what the command says of registrations when the job has ended."""
    run = rehearse("registered.py", *scene, ranks=2, timeout=40, cold=True)
    run.assert_good()
    return run.finished.lines("rehearsal: NCCL could not use registered memory in")


def assert_differ(run: Rehearsal, *words: str) -> None:
    """Assert that rule L8 and no other was broken, in a line with these words."""
    assert run.broken == ["L8"], run.output
    assert run.status == RULES_BROKEN, run.output
    line = run.finished.lines("rule L8 broken")[0]
    assert all(word in line for word in words), line


def states(*facts: int) -> dict[str, object]:
    """Return what the scene `states` tells of three calls."""
    return {"states": list(facts), "extent": [0, SIZE], "references": [1, 0]}


USED, UNUSED = states(0, 0, IN_EFFECT), states(0, 0, 0)
SCENES = [  # a sentence, the scene with its arguments, the version with settings, and what both ranks tell
    *(
        ("From the first call on that is large enough and whose buffer counts.", f"states nccl {call}", {}, told)
        for call, told in (
            *dict.fromkeys(sorted(USED_BY), USED).items(),
            ("all_reduce", UNUSED),
            ("reduce_scatter", UNUSED),
        )
    ),
    ("Memory of a handle that can be exported is used.", "states exportable gather", {}, USED),
    ("Other memory is not, and no rule is broken.", "states unexportable gather", {}, UNUSED),
    ("Nor is that of cudaMalloc.", "states malloc gather", {}, UNUSED),
    ("Without peer access nothing is used.", "states nccl message", {"NCCL_P2P_DISABLE": "1"}, UNUSED),
    ("With this setting memory of cudaMalloc is.", "states malloc message", {"NCCL_LEGACY_CUDA_REGISTER": "1"}, USED),
    (
        "NCCL accepts the call, and gives no handle.",
        "no_local_registrations",
        {"NCCL_LOCAL_REGISTER": "0"},
        {"handle": None},
    ),
    ("A collective of ranks on two hosts uses no registration in this way.", "two_hosts", {}, {"states": [0, 0, 0]}),
    ("Before 2.29 only if the send buffer is registered too.", "send_buffer_elsewhere", {}, {"state": 0}),
    ("From then on without it.", "send_buffer_elsewhere", {"version": NEW}, {"state": IN_EFFECT}),
    ("A gather in a window uses none, a message does.", "in_a_window", {}, {"states": [0, IN_EFFECT]}),
]


@pytest.mark.parametrize(("sentence", "scene", "given", "facts"), SCENES)
def test_what_a_registration_does(sentence: str, scene: str, given: dict[str, str], facts: dict[str, object]) -> None:
    """As the record of NCCL says it on both ranks, without a broken rule."""
    run = play(*scene.split(), **given)
    run.assert_good()
    for rank in (0, 1):
        assert {name: run.facts(rank)[name] for name in facts} == facts, sentence


@pytest.mark.parametrize("call", sorted(USED_BY - {"message"}))
def test_ranks_differ_in_a_collective(call: str) -> None:
    """Registered on both ranks, in effect on one: both ranks hear it."""
    run = play("mixture", call, "nccl", "malloc")
    assert_differ(run, "bytes", "in effect on ranks 0")
    assert len(run.finished.lines("rule L8 broken")) == 2
    assert [run.facts(rank)["state"] for rank in (0, 1)] == [IN_EFFECT, 0]


def test_a_collective_on_a_registration_that_messages_used_first() -> None:
    """NCCL before 2.29 has no address of the peers then; from 2.29 on it has."""
    run = play("messages_first")
    assert (run.broken, run.status) == (["L9"], RULES_BROKEN), run.output
    assert f"ncclAllGather of {4 * MB} bytes" in run.finished.lines("rule L9 broken")[0]
    assert run.facts(0)["gathered"] == [1.0, 2.0]
    play("messages_first", version=NEW).assert_good()


def test_ranks_differ_below_the_sizes() -> None:
    """Small calls use no registration, so ranks do not differ."""
    for call in ("gather", "message"):
        play("small_mixture", call).assert_good()


def test_calls_that_use_none_may_differ() -> None:
    """Sums are never in effect."""
    play("mixture", "all_reduce", "nccl", "malloc").assert_good()


@pytest.mark.parametrize("registered", ["0", "1"])
def test_ranks_differ_in_a_message(registered: str) -> None:
    """A message between registered and other memory of NCCL: the receiver names both ranks. Here the value is right."""
    run = play("one_side_of_a_message", registered)
    ends = ("send buffer is in effect", "receive buffer is not") if registered == "0" else ("send buffer is not",)
    assert_differ(run, "ncclSend of rank 0 and ncclRecv of rank 1", f"{2 * MB} bytes", *ends)
    assert len(run.finished.lines("rule L8 broken")) == 1
    assert run.facts(1)["received"] == [1.0]


@pytest.mark.parametrize("call", ["gather", "message", "exchange"])
def test_memory_that_cannot_be_exported_leaks(call: str) -> None:
    """It comes back if no call used it, and never after one that tried."""
    run = play("unexportable", call)
    run.assert_good()
    for rank in (0, 1):
        before, after = run.facts(rank)["used"]
        assert after - before == SIZE, rank
        assert run.facts(rank)["state"] == 0


@pytest.mark.parametrize("registered", ["registered", "unregistered"])
def test_a_captured_call_registers_by_itself(registered: str) -> None:
    """Memory of NCCL is in effect then, registered or not; NCCL marks the record that it finds."""
    run = play("captured", "nccl", registered)
    run.assert_good()
    assert run.facts()["gathered"] == [1.0, 2.0]
    assert run.facts().get("state") == (IN_EFFECT if registered == "registered" else None)


def test_ranks_differ_in_a_captured_call() -> None:
    """Nobody registered anything, and NCCL did so for the memory of one rank, unless NCCL_GRAPH_REGISTER=0."""
    assert_differ(play("captured", "nccl,malloc", "unregistered"), "in effect on ranks 0, not on ranks 1")
    play("captured", "nccl,malloc", "unregistered", NCCL_GRAPH_REGISTER="0").assert_good()


def test_the_end_says_what_was_in_vain() -> None:
    """One line of the job counts the calls of all ranks; a job whose registrations are used has none."""
    [line] = said_at_the_end("states", "malloc", "gather")
    assert line.endswith("in 2 calls (cudaMalloc memory: 2, memory that cannot be exported: 0)")
    [line] = said_at_the_end("states", "unexportable", "message")
    assert line.endswith("in 2 calls (cudaMalloc memory: 0, memory that cannot be exported: 2)")
    assert not said_at_the_end("states", "nccl", "gather")

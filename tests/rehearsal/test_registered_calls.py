"""Registrations that take effect: at the calls that gain by them, on an alias of the segment."""

from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.rehearsal import Rehearsal, rehearse

MB = 1 << 20
VMM = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "auto"}
TORCH = {"SYMM_REGISTER_LOCAL": "auto"}


@pytest.fixture(scope="module")
def vmm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsal, Path]:
    """Two ranks whose segments other processes can map."""
    log = tmp_path_factory.mktemp("vmm")
    run = rehearse("registered_calls.py", ranks=2, log=log, env=VMM).assert_good()
    return run, log


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsal, Path]:
    """The same with memory of cudaMalloc."""
    log = tmp_path_factory.mktemp("torch")
    run = rehearse("registered_calls.py", ranks=2, log=log, env=TORCH).assert_good()
    return run, log


def test_results_are_the_same(vmm: tuple[Rehearsal, Path], ordinary: tuple[Rehearsal, Path]) -> None:
    """A call on an alias fills the tensor that the program gave, also in place."""
    for run, _ in (vmm, ordinary):
        for rank, facts in enumerate(run.told):
            assert facts["gathered"] == [1.0, 2.0]
            assert facts["in_place"] == [7.0, 8.0]
            assert facts["sent"] == [2.0 - rank] * 2


def test_only_calls_that_gain_register(vmm: tuple[Rehearsal, Path]) -> None:
    """A small all_gather registers nothing; a large one registers the segments of its buffers, once."""
    facts = vmm[0].facts()
    assert facts["after_small"] == 0
    assert facts["after_gather"] == 2
    assert facts["held"] == 4
    sizes = sorted(event["size"] for event in vmm[0].events("register.local", 0))
    assert sizes == [20 * MB, 32 * MB, 40 * MB, 40 * MB]
    assert {event["expected"] for event in vmm[0].events("register.local")} == {"host"}


def test_the_log_proves_the_effect(vmm: tuple[Rehearsal, Path]) -> None:
    """After the first call tracehook reads what NCCL did with the registration. The audit and the status say it."""
    used = vmm[0].events("register.used", 0)
    assert [event["means"] for event in used] == [
        "ipc"
    ] * 3  # NCCL marks the output of a gather, and both of a transfer
    assert vmm[0].events("register.unused") == []
    (row,) = vmm[0].facts()["status"]["communicators"]
    assert (row["in_effect"], row["in_vain"], row["at_calls"], row["one_host"]) == (3, 0, True, True)
    Audit(vmm[1]).expect(CLEAN, "NCCL used 6 local registrations.")
    assert "registered, in effect inside the host for all_gather from 16 MiB" in vmm[0].facts()["registration"]


def test_a_segment_takes_its_registrations_along(vmm: tuple[Rehearsal, Path], ordinary: tuple[Rehearsal, Path]) -> None:
    """What the program frees is deregistered before, and its memory comes back, alias or not."""
    assert vmm[0].facts()["left"] == 1  # of the segment that still lives
    assert vmm[0].facts()["used"] == ordinary[0].facts()["used"]
    kinds = {event["memory_kind"] for event in vmm[0].events("segment.alloc")}
    assert kinds == {"shareable"}


def test_a_segment_is_registered_apart_for_messages_and_for_collectives(tmp_path: Path) -> None:
    """NCCL 2.28 hangs in a collective on a registration that a message used first: rule L9 of the rehearsal."""
    run = rehearse("registered_calls.py", "sent_then_gathered", ranks=2, log=tmp_path, env=VMM).assert_good()
    for rank, facts in enumerate(run.told):
        assert (facts["received"], facts["gathered"], facts["left"]) == ([2.0 - rank] * 2, [7.0, 8.0], 0)
        made = [event.get("for_transfers", False) for event in run.events("register.local", rank)]
        assert sorted(made) == [False, True, True]  # the tensor that is sent, and the other one twice
        assert facts["graph_register"] == "0"  # else NCCL itself would do it in captured calls
    assert run.events("register.unused") == []
    Audit(tmp_path).expect(CLEAN, "NCCL used 6 local registrations.")


def test_what_has_no_effect_is_not_done(ordinary: tuple[Rehearsal, Path]) -> None:
    """Nothing is registered of cudaMalloc's memory inside a host. Status, audit and explain say why."""
    run, log = ordinary
    assert run.events("register.local") == []
    assert run.finished.err == ""
    left_out = run.facts()["status"]["left_out"]
    assert left_out["segments"] == 6
    assert "SYMM_REGISTER_MEMORY=vmm" in left_out["why"]
    assert "SYMM_REGISTER_MEMORY=vmm" in run.facts()["registration"]
    Audit(log).expect(CLEAN, "12 segments stayed unregistered", "SYMM_REGISTER_MEMORY=vmm")


def test_torch_registers_in_vain(tmp_path: Path) -> None:
    """Where torch's own hook registers memory of cudaMalloc, the audit says that NCCL cannot use it."""
    env = TORCH | {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
    rehearse("registered_calls.py", ranks=2, log=tmp_path, env=env)
    Audit(tmp_path).expect(FINDINGS, "registered-in-vain", "that NCCL cannot use")


@pytest.mark.parametrize("memory", ["torch", "vmm"])
def test_a_scope_beside_torch_that_registers_everything(tmp_path: Path, memory: str) -> None:
    """The memory of a scope goes into ordinary memory, also by a group without its window: both count, or none does."""
    env = {"SYMM_REGISTER_MEMORY": memory, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
    new = {"TRACEHOOK_EMU_NCCL_VERSION": "23007"}  # with an older one torch's hook breaks rule L9
    run = rehearse("registered_calls.py", "sent_elsewhere", ranks=2, log=tmp_path, env=TORCH | env | new)
    assert (run.facts(1)["received"], run.facts(1)["broadcast"]) == ([3.0, 3.0], [3.0, 3.0])
    assert set(run.broken) <= {"C4"}, run.output  # torch's hook leaves its registrations when a group ends


@pytest.mark.parametrize(
    ("memory", "size", "ranks", "local"),
    [("vmm", "48", 2, "auto"), ("vmm", "48", 3, "auto"), ("torch", "8", 2, "all")],
)
def test_a_tensor_of_a_scope_is_sent(tmp_path: Path, memory: str, size: str, ranks: int, local: str) -> None:
    """A window's memory goes to a rank without one, by send and broadcast: NCCL sees no mixture.

    Three ranks agree at their first collective that gains: a large send before it uses no registered memory.
    """
    env = {"SYMM_REGISTER_LOCAL": local, "SYMM_REGISTER_MEMORY": memory}
    run = rehearse("registered_calls.py", "sent_from_scope", size, ranks=ranks, log=tmp_path, env=env).assert_good()
    assert run.facts(1) == {"received": [3.0, 3.0], "broadcast": [3.0, 3.0]}
    Audit(tmp_path).expect(CLEAN)


@pytest.mark.parametrize(("nccl", "memory"), [("22809", "torch"), ("23007", "vmm")])
def test_a_graph_sends_a_tensor_of_a_scope(tmp_path: Path, nccl: str, memory: str) -> None:
    """NCCL would register for the captured call what it can map, on one rank alone, and hang: it is told not to."""
    env = TORCH | {"SYMM_REGISTER_MEMORY": memory, "TRACEHOOK_EMU_NCCL_VERSION": nccl}
    run = rehearse("registered_calls.py", "captured_from_scope", ranks=2, log=tmp_path, env=env).assert_good()
    for number in (3.0, 4.0):
        assert run.facts(1)[f"sent {number:.0f}"] == [number] * 4
        assert [run.facts(rank)[f"gathered {number:.0f}"] for rank in (0, 1)] == [[number, number + 1]] * 2
    assert run.facts()["set_for_nccl"] == {"NCCL_GRAPH_REGISTER": "0"}
    Audit(tmp_path).expect(CLEAN)


@pytest.mark.parametrize("memory", ["torch", "vmm"])
def test_ranks_of_several_hosts_register_nothing(tmp_path: Path, memory: str) -> None:
    """Of two ranks of one host NCCL would map a scope's memory and not the ordinary one of the other, and hang.

    Between hosts NCCL before 2.32.6 may hang on registered memory (nccl #2389). Status, audit and explain say why.
    """
    env = TORCH | {"SYMM_REGISTER_MEMORY": memory, "TEST_HOSTS": "2", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    run = rehearse("registered_calls.py", "sent_among_hosts", ranks=4, log=tmp_path, env=env).assert_good()
    for rank in range(4):
        assert run.facts(rank) == {"received": [True] * 6}
    assert run.events("register.local") == []
    Audit(tmp_path).expect(CLEAN, "stayed unregistered with communicators of several hosts")


@pytest.mark.parametrize(("nccl", "what"), [("22809", "received"), ("23007", "sent")])
def test_a_tensor_of_a_scope_is_exchanged(tmp_path: Path, nccl: str, what: str) -> None:
    """Of an all_to_all only what is sent, or what is received, lies in a window: NCCL sees no mixture."""
    env = TORCH | {"TRACEHOOK_EMU_NCCL_VERSION": nccl}
    run = rehearse(
        "registered_calls.py", "exchanged_from_scope", "8", what, ranks=2, log=tmp_path, env=env
    ).assert_good()
    assert [run.facts(rank)["received"] for rank in range(2)] == [[0.0, 10.0], [1.0, 11.0]]
    Audit(tmp_path).expect(CLEAN)


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("SYMM_REGISTER_MEMORY", "torch", "gather"),
        ("SYMM_REGISTER_LOCAL", "off", "gather"),
        ("-", "", "gather"),
        ("SYMM_REGISTER_MEMORY", "torch", "send"),
        ("-", "", "send"),
    ],
)
def test_ranks_that_differ_register_nothing(tmp_path: Path, variable: str, value: str, what: str) -> None:
    """One rank would register for a call and the other would not: neither does, and one line says why."""
    run = rehearse("registered_calls.py", "apart", variable, value, what, ranks=2, log=tmp_path, hook=False, env=VMM)
    run.assert_good()
    sums = [[[1.0, 2.0], [2.0, 3.0]]] * 2 if what == "gather" else [[[2.0, 2.0], [3.0, 3.0]], [[1.0, 1.0], [2.0, 2.0]]]
    assert [run.facts(rank)["sums"] for rank in (0, 1)] == sums, run.output
    assert run.facts()["seconds"] < 20
    assert run.events("register.local") == []
    said = run.finished.lines("this rank registers no memory for calls on this communicator")
    assert len(said) == 1, run.output
    if variable != "-" and what == "gather":
        assert "rank 1 made call 0 on memory that is not registered, and rank 0 wants it to be" in said[0]


def test_switching_off_leaves_no_registration(tmp_path: Path) -> None:
    """tracehook.disable() undoes what calls registered; calls then run on their own buffers until enable()."""
    run = rehearse("registered_calls.py", "switched", ranks=2, log=tmp_path, env=VMM).assert_good()
    assert run.facts() == {"on": 2, "off": 0, "still_off": 0, "on_again": 2, "sums": [1.0, 2.0]}


def test_foreign_memory_has_a_word(tmp_path: Path) -> None:
    """A call that gains has a buffer of another allocator: one line says what that can do. The result is right."""
    run = rehearse("registered_calls.py", "foreign_memory", ranks=2, log=tmp_path, env=VMM).assert_good()
    assert run.facts()["gathered"] == [1.0, 2.0]
    assert len(run.finished.lines("tracehook: ")) == 2, run.output
    assert run.finished.err.count("that tracehook cannot register (") == 2


@pytest.mark.parametrize("env", [VMM, TORCH | {"NCCL_HOSTID": "one"}], ids=["vmm", "several hosts"])
def test_a_rank_alone_registers_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    """No other process could map its memory, and no network card reads it: NCCL only copies."""
    run = rehearse("registered_calls.py", log=tmp_path, env=env).assert_good()
    assert run.facts()["gathered"] == [1.0]
    assert run.events("register.local") == []
    assert run.finished.lines("tracehook: ") == []
    assert Audit(tmp_path).status == CLEAN


def test_devices_of_one_process_register_nothing(tmp_path: Path) -> None:
    """NCCL uses no registration between them, so tracehook makes none, and has nothing to say."""
    run = rehearse("registered_calls.py", "one_process", devices=2, log=tmp_path, env=VMM).assert_good()
    assert run.facts()["gathered"] == [[1.0, 2.0]] * 2
    assert run.events("register.local") == []
    assert run.finished.lines("tracehook: ") == []


@pytest.mark.parametrize("late", ["all", "rank 0"])
def test_too_late_for_vmm(tmp_path: Path, late: str) -> None:
    """Where CUDA is up before tracehook, segments stay as they are, one line says so, and no rank registers."""
    run = rehearse("late_vmm.py", late, ranks=2, log=tmp_path, hook=False, env=VMM).assert_good()
    said = run.finished.lines("tracehook: ")
    assert sum("SYMM_REGISTER_MEMORY=vmm has no effect: CUDA was up before" in line for line in said) == (
        2 if late == "all" else 1
    )
    assert run.finished.err.count("that tracehook cannot register (") == 0, run.output
    sources = ["torch", "torch" if late == "all" else "vmm"]
    assert [run.facts(rank)["source"] for rank in range(2)] == sources
    assert [run.facts(rank)["gathered"] for rank in range(2)] == [[1.0, 2.0]] * 2
    assert run.events("register.local") == []

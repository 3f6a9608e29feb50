"""The windows of the emulated NCCL: what fails, hangs or goes wrong silently on hardware does so here, with a name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from support.rehearsal import Rehearsal, rehearse
from support.symmetric import assert_broken, both

OLD, NEW, NEWEST = "22809", "23007", "23203"
EACH = (OLD, NEW)  # a version of each kind: before 2.30.7, and from then on
ALL = (*EACH, NEWEST)  # from 2.32.3 on memory that is registered again takes no space
DEADLINE = 30  # seconds: every rank comes within it, also on a busy machine
SHORT = 3  # seconds, where a rank does not come
IN_VAIN = {"TRACEHOOK_EMU_WINDOW_TIMEOUT": str(SHORT)}
NO_WINDOWS = {"TRACEHOOK_EMU_WINDOWS": "null"}
SMALL = {"TRACEHOOK_EMU_MEMORY_GB": "1"}
EXPANDABLE = "expandable_segments:True"


def play(
    scene: str, *arguments: str, version: str = OLD, faults: str = "", job: str = "windows.py", **env: str
) -> Rehearsal:
    """Run one scene on two ranks."""
    changes = {"TRACEHOOK_EMU_NCCL_VERSION": version, "TRACEHOOK_EMU_WINDOW_TIMEOUT": str(DEADLINE), **env}
    return rehearse(job, scene, *arguments, ranks=2, faults=faults, env=changes, timeout=40)


every_version = pytest.mark.parametrize("version", EACH)


class Ranks(NamedTuple):
    """A fact that the two ranks tell differently."""

    first: Any
    second: Any


class Scene(NamedTuple):
    """A sentence, the scene with its arguments, the versions, the rules that are broken, and what both ranks tell."""

    sentence: str
    name: str
    versions: tuple[str, ...]
    rules: str
    facts: dict[str, Any]
    env: Mapping[str, str] = MappingProxyType({})
    faults: str = ""
    said: str = ""  # in the job's output
    waits: tuple[float, float] | None = None  # for how long each rank waits
    job: str = "windows.py"


SCENES = (
    Scene("All-reduce, all-gather and reduce-scatter on windows that all ranks registered alike are right.",
          "right", ALL, "",
          {"reduced": [3.0, 3.0], "gathered": [3.0, 3.0, 3.0], "scattered": [6.0, 6.0], "dropped": [0, 0], "none": 0}),
    Scene("Rank 0 adds rank 1's second buffer to its own first one, and writes the sum into that second buffer.",
          "opposite_order", EACH, "W16",
          {"first": Ranks([201.0, 1.0], [2.0, 102.0]), "second": Ranks([100.0, 102.0], [201.0, 200.0])}),
    Scene("An all-gather into windows in opposite order writes into the other buffer of the other rank.",
          "opposite_order_gather", EACH, "W16",
          {"first": [1.0, 2.0], "second": Ranks([1.0, 100.0], [200.0, 2.0])}),
    Scene("A reduce-scatter from windows in opposite order reads the other buffer of the other rank.",
          "opposite_order_scatter", EACH, "W16", {"second": Ranks([201.0], [102.0])}),
    Scene("A maximum, a broadcast, and a sum outside of windows are right, whatever the order of the windows.",
          "opposite_order_ordinary", EACH, "W16", {"first": [2.0, 2.0], "second": [200.0, 200.0]}),
    Scene("Through PyTorch, two tensors allocated in opposite order give 201 and 2 instead of 3, as on hardware.",
          "opposite", EACH, "W16", {"first": Ranks(201.0, 2.0), "windows": 2, "undone": 2}, job="windows_of_torch.py"),
    Scene("Until 2.30.7, windows of different sizes in opposite order fail, and no further one can be made; "
          "the communicator still works without windows.",
          "opposite_order_sizes", (OLD,), "W2 W12", {"results": [1, 3], "sum": [3.0]}),
    Scene("From 2.30.7 on, such windows are paired, and nothing is said before they are used.",
          "opposite_order_sizes", (NEW,), "", {"results": [0, 0]}),
    Scene("Until 2.30.7, a window of 4 MB on one rank and 8 MB on the other fails on both.",
          "larger_on_one", (OLD,), "W2", {"result": 1}),
    Scene("From 2.30.7 on, windows may differ in size; to reach beyond the smallest is an illegal memory access.",
          "larger_on_one", (NEW,), "W2 W16", {"result": 0, "small": [3.0, 3.0], "large": 1},
          said="illegal memory access"),
    Scene("Memory of cudaMalloc is refused at once.", "plain_memory", EACH, "W7", {"result": 1},
          waits=(0, DEADLINE)),
    Scene("An all-reduce on a window of one rank and other memory of the other hangs until the deadline, then fails.",
          "mixed", EACH, "L7 W16", {"error": 2}, IN_VAIN, said="symmetric on some ranks only", waits=(SHORT, DEADLINE)),
    Scene("An abort ends an all-reduce that hangs because of a window on one rank only.",
          "mixed_aborted", (OLD,), "L7 W16", {}, waits=(0, DEADLINE)),
    Scene("One rank deregisters a window: it does not wait, and later operations elsewhere are right.",
          "local_deregister", EACH, "", {"sum": [3.0]}),
    Scene("Ranks that deregister different windows before a new one break a rule, but the new one is right here.",
          "uneven_order", EACH, "W4", {"sum": [3.0, 3.0]}),
    Scene("Until 2.30.7, a window registered during a capture is refused, and the capture is invalidated.",
          "during_capture", (OLD,), "W6", {"result": 1, "ended": 901}),
    Scene("From 2.30.7 on, a window can be registered during a capture.",
          "during_capture", (NEW,), "", {"result": 0, "ended": 0}),
    Scene("A captured all-reduce runs at every launch of its graph, in its turn among others, with what memory holds.",
          "captured late", EACH, "", {"sums": [3.0, 3.0, 30.0, 30.0], "doubled": [120.0], "other": [6.0]}),
    Scene("A window that is deregistered before the graphs that use it are gone breaks a rule.",
          "captured early", (OLD,), "W13", {}),
    Scene("NCCL's destroy would wait for the graph without end; launched after it all the same, it does nothing.",
          "launched_after_destroy", (OLD,), "C5 C8", {"untouched": Ranks([1.0], [2.0])}, IN_VAIN),
    Scene("In 2.30, a window may lie on several handles: the same all-reduces are right.",
          "expandable", (NEW,), "", {"first": 6.0}, {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, job="windows_of_torch.py"),
    Scene("In 2.27 a range that is no multiple of 2 MiB gets no window, and success; a whole one gets its window.",
          "odd_size", ("22707",), "", {"odd": [0, None], "whole": [0, True]}),
    Scene("A tensor across two windows of one allocation is reduced right, though it ends outside of its window.",
          "side_by_side", EACH, "W15", {"sum": [3.0, 3.0]}),
    Scene("The same memory can be a window of two communicators, and an abort with live windows is fine.",
          "two_communicators", EACH, "", {"results": [0, 0], "sum": [3.0, 3.0]}),
    Scene("The same memory can be registered twice, against the rules, and is a window until both are deregistered.",
          "twice", ALL, "L2 W8", {"sum": [3.0, 3.0], "last": 0, "again": 3}),
    Scene("Until 2.30.7, a rank does not exchange memory again that it has mapped: another one waits in vain.",
          "twice_on_one", (OLD,), "W1 W8", {"result": Ranks(0, 2)}, IN_VAIN),
    Scene("From 2.30.7 on, every registration is an exchange: what comes twice is paired with what comes second.",
          "twice_on_one", (NEW, NEWEST), "W8", {"result": 0}),
    Scene("Memory freed before its window is deregistered is no error at once, but a broken rule.",
          "freed_under", EACH, "W17", {"freed": 0, "dropped": 0}),
    Scene("A communicator that is destroyed with a live window breaks a rule, and so does deregistering afterwards.",
          "live_at_destroy", (OLD,), "C4 C5", {"after": 4}),
    Scene("A window of an aborted communicator is recognised on a new one that got the same address.",
          "live_at_abort", (OLD,), "W14", {"same": True, "after": 3}),
    Scene("A window that does not begin on 4096 bytes is refused, and no further one can be made.",
          "misaligned", EACH, "W7 W12", {"result": 4, "poisoned": 3}),
    Scene("A null or empty window is refused without harm, and an unknown handle is an internal error.",
          "wrong_arguments", (OLD,), "L2", {"results": [4, 4], "unknown": 3, "fine": 0}),
    Scene("Without symmetric support, 2.29 and later succeed with a null window.",
          "unsupported", (NEW,), "", {"result": 0, "window": None}, NO_WINDOWS),
    Scene("A window that is given to ncclCommDeregister breaks a rule of its own.",
          "wrong_function", (OLD,), "W9", {"result": 5}),
    Scene("The registration that 2.28 gives in place of a window must go to ncclCommWindowDeregister.",
          "wrong_function", (OLD,), "W9", {"result": 0}, NO_WINDOWS),
    Scene("Inside a group windows are made at its end, before its operations, which may use them.",
          "in_a_group", ALL, "", {"before": [1, 1], "written": True, "sum": [3.0, 3.0], "dropped": [0, 0]}),
    Scene("A group carries out the windows of two communicators in one order, however the ranks named them.",
          "several_in_a_group", (OLD,), "", {"result": 0}),
    Scene("Ranks that register a window with different flags break a rule, and NCCL does not notice.",
          "flags_differ", (OLD,), "W3", {"result": 0}),
    Scene("From 2.30.7 on, memory that is registered again and again takes space until there is none.",
          "too_much", (NEW,), "W8 W10", {"results": [0, 0, 0, 0, 2]}, SMALL),
    Scene("Until 2.30.7, and again from 2.32.3 on, memory that is registered again and again takes no more space.",
          "too_much", (OLD, NEWEST), "W8", {"results": [0] * 5}, SMALL),
    Scene("A window that is deregistered while an all-reduce on it has not finished breaks a rule.",
          "in_use", EACH, "W13", {"sum": [3.0]}),
    Scene("A registration that fails on one rank only leaves the other waiting, and both without windows.",
          "failing_on_one", (OLD,), "W1 W12", {"first": Ranks(2, 3), "second": Ranks(2, 3)}, IN_VAIN,
          "ncclCommWindowRegister:fail@1=3#rank1"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("scene", "version"),
    [
        pytest.param(
            scene, version, id=f"{scene.name.replace(' ', '-')}-{version}{'-null' * (scene.env is NO_WINDOWS)}"
        )
        for scene in SCENES
        for version in scene.versions
    ],
)
def test_a_scene(scene: Scene, version: str) -> None:
    """As the sentence of the scene says: the rules that are broken are these, and both ranks see what it has."""
    run = play(*scene.name.split(), version=version, faults=scene.faults, job=scene.job, **scene.env)
    if scene.rules:
        assert_broken(run, *scene.rules.split())
    else:
        run.assert_good()
    for rank in (0, 1):
        expected = {name: fact[rank] if isinstance(fact, Ranks) else fact for name, fact in scene.facts.items()}
        told = run.facts(rank)
        assert {name: told.get(name) for name in expected} == expected, scene.sentence
        if scene.waits is not None:
            assert scene.waits[0] <= told["waited"] < scene.waits[1], scene.sentence
    assert scene.said in run.output


@every_version
def test_a_rank_that_does_not_register(version: str) -> None:
    """A rank that registers alone waits until the deadline, which names who is missing and ends the communicator."""
    run = play("one_rank_only", version=version, **IN_VAIN)
    assert_broken(run, "W1")
    facts = run.facts(0)
    assert (facts["result"], facts["later"]) == (2, 2)
    assert facts["waited"] >= SHORT
    assert "rank(s) 0 did come, rank(s) 1 did not" in run.output


@every_version
def test_abort_ends_the_wait(version: str) -> None:
    """An abort from another thread ends a registration that waits, with an error and no broken rule."""
    run = play("abort_ends_the_wait", version=version)
    run.assert_good()
    assert run.facts(0)["result"] == 3
    assert 0.3 <= run.facts(0)["waited"] < DEADLINE


def test_memory_of_cuda_malloc_on_one_rank() -> None:
    """Memory of cudaMalloc on one rank is refused there before the exchange: the other rank waits in vain."""
    run = play("plain_memory_on_one", **IN_VAIN)
    assert_broken(run, "W1", "W7")
    assert both(run, "result") == [1, 2]
    assert run.facts(0)["waited"] < SHORT <= run.facts(1)["waited"]


@every_version
def test_two_ranks_in_one_process(version: str) -> None:
    """Two ranks of one communicator in one process make their windows in one group, and do not wait in vain."""
    env = {"TRACEHOOK_EMU_NCCL_VERSION": version, "TRACEHOOK_EMU_WINDOW_TIMEOUT": str(DEADLINE)}
    run = rehearse("windows.py", "ranks_of_one_process", ranks=1, devices=2, env=env, timeout=40)
    run.assert_good()
    assert run.facts()["sums"] == [3.0] * 4


def test_expandable_segment_fails_when_used() -> None:
    """In 2.28, a window on an expandable segment is registered, and the first all-reduce on it dies on all ranks."""
    run = play("expandable", job="windows_of_torch.py", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    assert run.broken == ["W7"], run.output
    assert both(run, "windows") == [1, 1]
    assert all("illegal memory access" in problem for problem in both(run, "problem")), run.output


@pytest.mark.parametrize("version", ["22703", "22907"])
def test_expandable_segment_is_refused(version: str) -> None:
    """In 2.27 and 2.29 a rank whose memory has several handles fails by itself, and says so."""
    run = play("expandable", version=version, job="windows_of_torch.py", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    assert run.broken == ["W7"], run.output
    assert all("invalid argument" in problem for problem in both(run, "refused")), run.output


def test_no_symmetric_support() -> None:
    """Without symmetric support, 2.28 gives the handle of a local registration, which counts as one more reference."""
    run = play("unsupported", TRACEHOOK_EMU_WINDOWS="null")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["result"] == 0
        assert facts["window"] == facts["local"] is not None
        assert facts["sum"] == [3.0, 3.0]


def test_non_blocking_communicator() -> None:
    """On a non-blocking communicator a registration is in progress, and nothing else may be called meanwhile."""
    run = play("non_blocking", faults="ncclCommWindowRegister:in_progress@*=300ms")
    assert_broken(run, "C2")
    assert both(run, "early") == [7, 7]
    assert both(run, "refused") == [4, 4]
    assert both(run, "errors") == [[0, 0]] * 2
    assert both(run, "written") == [[True, True]] * 2
    assert min(both(run, "seconds")) >= 0.3


@every_version
def test_windows_of_a_communicator_that_was_shrunk(version: str) -> None:
    """After a shrink that ended its work, the old communicator gives back its windows: NCCL asks for no state."""
    run = play("shrunk", version=version)
    run.assert_good()
    assert (run.facts(0)["device_side"], run.facts(0)["window"]) == (0, 0)


def test_injected_delay_on_one_rank() -> None:
    """A registration that is slow on one rank keeps the other waiting just as long."""
    run = play("later_on_one", faults="ncclCommWindowRegister:slow@1=300ms#rank1")
    run.assert_good()
    assert min(both(run, "ended")) - run.facts(1)["begun"] >= 0.3, run.output

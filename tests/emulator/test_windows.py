"""The windows of the emulated NCCL: what fails, hangs or goes wrong silently on hardware does so here, with a name."""

from __future__ import annotations

from typing import Any

import pytest
from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

OLD, NEW, NEWEST = "22809", "23007", "23203"
DEADLINE = 30  # seconds: every rank comes within it, also on a busy machine
SHORT = 3  # seconds, where a rank does not come
IN_VAIN = {"TRACEHOOK_EMU_WINDOW_TIMEOUT": str(SHORT)}
EXPANDABLE = "expandable_segments:True"


def play(
    scene: str, *arguments: str, version: str = OLD, faults: str = "", job: str = "windows.py", **env: str
) -> Rehearsal:
    """Run one scene on two ranks."""
    changes = {"TRACEHOOK_EMU_NCCL_VERSION": version, "TRACEHOOK_EMU_WINDOW_TIMEOUT": str(DEADLINE), **env}
    return rehearse(job, scene, *arguments, ranks=2, faults=faults, env=changes, timeout=40)


def both(run: Rehearsal, name: str) -> list[Any]:
    """Return one fact of both ranks."""
    return [run.facts(rank).get(name) for rank in (0, 1)]


def assert_broken(run: Rehearsal, *rules: str) -> None:
    """Assert that these rules were broken, no others, and that the status says so."""
    assert run.broken == sorted(rules), run.output
    assert run.status == RULES_BROKEN, run.output
    assert not run.finished.late
    assert run.finished.orphans == 0, run.output


@pytest.fixture(params=[OLD, NEW, NEWEST])
def version(request: pytest.FixtureRequest) -> str:
    """A version of each kind: before 2.30.7, from then on, and from 2.32.3 on."""
    return str(request.param)


def test_windows_in_the_same_order(version: str) -> None:
    """All-reduce, all-gather and reduce-scatter on windows that all ranks registered alike are right."""
    run = play("right", version=version)
    run.assert_good()
    assert both(run, "reduced") == [[3.0, 3.0]] * 2
    assert both(run, "gathered") == [[3.0, 3.0, 3.0]] * 2
    assert both(run, "scattered") == [[6.0, 6.0]] * 2
    assert both(run, "dropped") == [[0, 0]] * 2
    assert both(run, "none") == [0, 0]


def test_equal_sizes_in_opposite_order(version: str) -> None:
    """Equal windows in opposite order: all calls succeed, and each rank reduces its share with the wrong buffer."""
    run = play("opposite_order", version=version)
    assert_broken(run, "W16")
    # Rank 0 adds rank 1's second buffer to its own first one, and writes the sum into that second buffer.
    assert run.facts(0) == {"first": [201.0, 1.0], "second": [100.0, 102.0]}
    assert run.facts(1) == {"first": [2.0, 102.0], "second": [201.0, 200.0]}


def test_all_gather_in_opposite_order(version: str) -> None:
    """An all-gather into windows in opposite order writes into the other buffer of the other rank."""
    run = play("opposite_order_gather", version=version)
    assert_broken(run, "W16")
    assert run.facts(0) == {"first": [1.0, 2.0], "second": [1.0, 100.0]}
    assert run.facts(1) == {"first": [1.0, 2.0], "second": [200.0, 2.0]}


def test_reduce_scatter_in_opposite_order(version: str) -> None:
    """A reduce-scatter from windows in opposite order reads the other buffer of the other rank."""
    run = play("opposite_order_scatter", version=version)
    assert_broken(run, "W16")
    assert both(run, "second") == [[201.0], [102.0]]


def test_operations_without_a_symmetric_kernel(version: str) -> None:
    """A maximum, a broadcast, and a sum outside of windows are right, whatever the order of the windows."""
    run = play("opposite_order_ordinary", version=version)
    assert_broken(run, "W16")
    assert both(run, "first") == [[2.0, 2.0]] * 2
    assert both(run, "second") == [[200.0, 200.0]] * 2


def test_a_pool_of_torch_in_opposite_order(version: str) -> None:
    """Through PyTorch, two tensors allocated in opposite order give 201 and 2 instead of 3, as on hardware."""
    run = play("opposite", version=version, job="windows_of_torch.py")
    assert_broken(run, "W16")
    assert both(run, "first") == [201.0, 2.0]
    assert both(run, "windows") == [2, 2]
    assert both(run, "undone") == [2, 2]


def test_different_sizes_in_opposite_order_fail() -> None:
    """Until 2.30.7, windows of 4 and 64 MB in opposite order fail on both ranks, and no further one can be made."""
    run = play("opposite_order_sizes")
    assert_broken(run, "W2", "W12")
    assert both(run, "results") == [[1, 3]] * 2
    assert both(run, "sum") == [[3.0]] * 2, "the communicator still works without windows"


def test_different_sizes_in_opposite_order_are_paired() -> None:
    """From 2.30.7 on, windows of 4 and 64 MB in opposite order are paired, and nothing is said before they are used."""
    run = play("opposite_order_sizes", version=NEW)
    run.assert_good()
    assert both(run, "results") == [[0, 0]] * 2


def test_one_segment_of_two_sizes_fails() -> None:
    """Until 2.30.7, a window of 4 MB on one rank and 8 MB on the other fails on both."""
    run = play("larger_on_one")
    assert_broken(run, "W2")
    assert both(run, "result") == [1, 1]


def test_one_segment_of_two_sizes_works_as_far_as_the_smaller() -> None:
    """From 2.30.7 on, windows may differ in size; to reach beyond the smallest is an illegal memory access."""
    run = play("larger_on_one", version=NEW)
    assert_broken(run, "W2", "W16")
    assert both(run, "result") == [0, 0]
    assert both(run, "small") == [[3.0, 3.0]] * 2
    assert both(run, "large") == [1, 1]
    assert "illegal memory access" in run.output


def test_a_rank_that_does_not_register(version: str) -> None:
    """A rank that registers alone waits until the deadline, which names who is missing and ends the communicator."""
    run = play("one_rank_only", version=version, **IN_VAIN)
    assert_broken(run, "W1")
    facts = run.facts(0)
    assert (facts["result"], facts["later"]) == (2, 2)
    assert facts["waited"] >= SHORT
    assert "rank(s) 0 did come, rank(s) 1 did not" in run.output


def test_abort_ends_the_wait(version: str) -> None:
    """An abort from another thread ends a registration that waits, with an error and no broken rule."""
    run = play("abort_ends_the_wait", version=version)
    run.assert_good()
    assert run.facts(0)["result"] == 3
    assert 0.3 <= run.facts(0)["waited"] < DEADLINE


def test_memory_of_cuda_malloc(version: str) -> None:
    """Memory of cudaMalloc is refused at once."""
    run = play("plain_memory", version=version)
    assert_broken(run, "W7")
    assert both(run, "result") == [1, 1]
    assert max(both(run, "waited")) < DEADLINE


def test_memory_of_cuda_malloc_on_one_rank() -> None:
    """Memory of cudaMalloc on one rank is refused there before the exchange: the other rank waits in vain."""
    run = play("plain_memory_on_one", **IN_VAIN)
    assert_broken(run, "W1", "W7")
    assert both(run, "result") == [1, 2]
    assert run.facts(0)["waited"] < SHORT <= run.facts(1)["waited"]


def test_a_window_on_one_rank_only_is_used(version: str) -> None:
    """An all-reduce on a window of one rank and ordinary memory of the other hangs until the deadline, then fails."""
    run = play("mixed", version=version, **IN_VAIN)
    assert_broken(run, "L7", "W16")
    assert min(both(run, "waited")) >= SHORT
    assert both(run, "error") == [2, 2]
    assert "symmetric on some ranks only" in run.output


def test_abort_ends_a_hanging_operation() -> None:
    """An abort ends an all-reduce that hangs because of a window on one rank only."""
    run = play("mixed_aborted")
    assert_broken(run, "L7", "W16")
    assert max(both(run, "waited")) < DEADLINE


def test_deregistering_is_local(version: str) -> None:
    """One rank deregisters a window: it does not wait, and later operations elsewhere are right."""
    run = play("local_deregister", version=version)
    run.assert_good()
    assert both(run, "sum") == [[3.0]] * 2


def test_different_windows_are_deregistered(version: str) -> None:
    """Ranks that deregister different windows before a new one break a rule, but the new one is right here."""
    run = play("uneven_order", version=version)
    assert_broken(run, "W4")
    assert both(run, "sum") == [[3.0, 3.0]] * 2


def test_window_during_a_capture_fails() -> None:
    """Until 2.30.7, a window registered during a capture is refused, and the capture is invalidated."""
    run = play("during_capture")
    assert_broken(run, "W6")
    assert both(run, "result") == [1, 1]
    assert both(run, "ended") == [901, 901]


def test_window_during_a_capture_works() -> None:
    """From 2.30.7 on, a window can be registered during a capture."""
    run = play("during_capture", version=NEW)
    run.assert_good()
    assert both(run, "result") == [0, 0]
    assert both(run, "ended") == [0, 0]


def test_a_captured_operation_is_replayed(version: str) -> None:
    """A captured all-reduce runs at every launch of its graph, in its turn among others, with what memory holds."""
    run = play("captured", "late", version=version)
    run.assert_good()
    assert both(run, "sums") == [[3.0, 3.0, 30.0, 30.0]] * 2
    assert both(run, "doubled") == [[120.0]] * 2
    assert both(run, "other") == [[6.0]] * 2


def test_a_graph_keeps_its_windows_in_use() -> None:
    """A window that is deregistered before the graphs that use it are gone breaks a rule."""
    assert_broken(play("captured", "early"), "W13")


def test_a_graph_outlives_its_communicator() -> None:
    """NCCL's destroy would wait for the graph without end; launched after it all the same, the graph does nothing."""
    run = play("launched_after_destroy", **IN_VAIN)
    assert_broken(run, "C5", "C8")
    assert both(run, "untouched") == [[1.0], [2.0]]


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


def test_expandable_segment_works() -> None:
    """In 2.30, a window may lie on several handles: the same all-reduces are right."""
    run = play("expandable", version=NEW, job="windows_of_torch.py", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    run.assert_good()
    assert both(run, "first") == [6.0, 6.0]


@pytest.mark.parametrize("version", ["22703", "22907"])
def test_expandable_segment_is_refused(version: str) -> None:
    """In 2.27 and 2.29 a rank whose memory has several handles fails by itself, and says so."""
    run = play("expandable", version=version, job="windows_of_torch.py", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    assert run.broken == ["W7"], run.output
    assert all("invalid argument" in problem for problem in both(run, "refused")), run.output


def test_odd_sizes_have_no_window_in_2_27() -> None:
    """In 2.27 a range that is no multiple of 2 MiB gets no window, and success; a whole one gets its window."""
    run = play("odd_size", version="22707")
    run.assert_good()
    assert both(run, "odd") == [[0, None]] * 2
    assert both(run, "whole") == [[0, True]] * 2


def test_two_windows_side_by_side(version: str) -> None:
    """A tensor across two windows of one allocation is reduced right, though it ends outside of its window."""
    run = play("side_by_side", version=version)
    assert_broken(run, "W15")
    assert both(run, "sum") == [[3.0, 3.0]] * 2


def test_one_memory_on_two_communicators(version: str) -> None:
    """The same memory can be a window of two communicators, and an abort with live windows is fine."""
    run = play("two_communicators", version=version)
    run.assert_good()
    assert both(run, "results") == [[0, 0]] * 2
    assert both(run, "sum") == [[3.0, 3.0]] * 2


def test_one_memory_twice_on_one_communicator(version: str) -> None:
    """The same memory can be registered twice, against the rules, and is a window until both are deregistered."""
    run = play("twice", version=version)
    assert_broken(run, "L2", "W8")
    assert both(run, "sum") == [[3.0, 3.0]] * 2
    assert both(run, "last") == [0, 0]
    assert both(run, "again") == [3, 3]


def test_one_memory_twice_on_one_rank_only() -> None:
    """Until 2.30.7, a rank does not exchange memory again that it has mapped: one that has another waits in vain."""
    run = play("twice_on_one", **IN_VAIN)
    assert_broken(run, "W1", "W8")
    assert both(run, "result") == [0, 2]


@pytest.mark.parametrize("version", [NEW, NEWEST])
def test_one_memory_twice_on_one_rank_only_is_paired(version: str) -> None:
    """From 2.30.7 on, every registration is an exchange: memory registered twice is paired with what comes second."""
    run = play("twice_on_one", version=version)
    assert_broken(run, "W8")
    assert both(run, "result") == [0, 0]


def test_memory_freed_under_a_window(version: str) -> None:
    """Memory freed before its window is deregistered is no error at once, but a broken rule."""
    run = play("freed_under", version=version)
    assert_broken(run, "W17")
    assert both(run, "freed") == [0, 0]
    assert both(run, "dropped") == [0, 0]


def test_windows_left_at_destroy() -> None:
    """A communicator that is destroyed with a live window breaks a rule, and so does deregistering afterwards."""
    run = play("live_at_destroy")
    assert_broken(run, "C4", "C5")
    assert both(run, "after") == [4, 4]


def test_a_dead_window_on_a_new_communicator() -> None:
    """A window of an aborted communicator is recognised on a new one that got the same address."""
    run = play("live_at_abort")
    assert_broken(run, "W14")
    assert both(run, "same") == [True, True]
    assert both(run, "after") == [3, 3]


def test_misaligned_window(version: str) -> None:
    """A window that does not begin on 4096 bytes is refused, and no further one can be made."""
    run = play("misaligned", version=version)
    assert_broken(run, "W7", "W12")
    assert both(run, "result") == [4, 4]
    assert both(run, "poisoned") == [3, 3]


def test_wrong_arguments() -> None:
    """A null or empty window is refused without harm, and an unknown handle is an internal error."""
    run = play("wrong_arguments")
    assert_broken(run, "L2")
    assert both(run, "results") == [[4, 4]] * 2
    assert both(run, "unknown") == [3, 3]
    assert both(run, "fine") == [0, 0]


def test_no_symmetric_support() -> None:
    """Without symmetric support, 2.28 gives the handle of a local registration, which counts as one more reference."""
    run = play("unsupported", TRACEHOOK_EMU_WINDOWS="null")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["result"] == 0
        assert facts["window"] == facts["local"] is not None
        assert facts["sum"] == [3.0, 3.0]


def test_no_symmetric_support_is_null() -> None:
    """Without symmetric support, 2.29 and later succeed with a null window."""
    run = play("unsupported", version=NEW, TRACEHOOK_EMU_WINDOWS="null")
    run.assert_good()
    assert both(run, "result") == [0, 0]
    assert both(run, "window") == [None, None]


def test_a_window_given_to_the_wrong_function() -> None:
    """A window that is given to ncclCommDeregister breaks a rule of its own."""
    run = play("wrong_function")
    assert_broken(run, "W9")
    assert both(run, "result") == [5, 5]


def test_a_local_registration_in_place_of_a_window_given_to_the_wrong_function() -> None:
    """The registration that 2.28 gives in place of a window must go to ncclCommWindowDeregister."""
    run = play("wrong_function", TRACEHOOK_EMU_WINDOWS="null")
    assert_broken(run, "W9")
    assert both(run, "result") == [0, 0]


def test_windows_in_a_group(version: str) -> None:
    """Inside a group windows are made at its end, before its operations, which may use them."""
    run = play("in_a_group", version=version)
    run.assert_good()
    assert both(run, "before") == [[1, 1]] * 2
    assert both(run, "written") == [True, True]
    assert both(run, "sum") == [[3.0, 3.0]] * 2
    assert both(run, "dropped") == [[0, 0]] * 2


def test_two_communicators_in_one_group() -> None:
    """A group carries out the windows of two communicators in one order, however the ranks named them."""
    run = play("several_in_a_group")
    run.assert_good()
    assert both(run, "result") == [0, 0]


def test_non_blocking_communicator() -> None:
    """On a non-blocking communicator a registration is in progress, and nothing else may be called meanwhile."""
    run = play("non_blocking", faults="ncclCommWindowRegister:in_progress@*=300ms")
    assert_broken(run, "C2")
    assert both(run, "early") == [7, 7]
    assert both(run, "refused") == [4, 4]
    assert both(run, "errors") == [[0, 0]] * 2
    assert both(run, "written") == [[True, True]] * 2
    assert min(both(run, "seconds")) >= 0.3


def test_different_flags() -> None:
    """Ranks that register a window with different flags break a rule, and NCCL does not notice."""
    run = play("flags_differ")
    assert_broken(run, "W3")
    assert both(run, "result") == [0, 0]


def test_more_windows_than_a_device_has_memory() -> None:
    """From 2.30.7 on, memory that is registered again and again takes space until there is none."""
    run = play("too_much", version=NEW, TRACEHOOK_EMU_MEMORY_GB="1")
    assert_broken(run, "W8", "W10")
    assert both(run, "results") == [[0, 0, 0, 0, 2]] * 2


@pytest.mark.parametrize("version", [OLD, NEWEST])
def test_one_memory_takes_its_space_once(version: str) -> None:
    """Until 2.30.7, and again from 2.32.3 on, memory that is registered again and again takes no more space."""
    run = play("too_much", version=version, TRACEHOOK_EMU_MEMORY_GB="1")
    assert_broken(run, "W8")
    assert both(run, "results") == [[0] * 5] * 2


def test_windows_of_a_communicator_that_was_shrunk(version: str) -> None:
    """After a shrink that ended its work, the old communicator gives back its windows: NCCL asks for no state."""
    run = play("shrunk", version=version)
    run.assert_good()
    assert (run.facts(0)["device_side"], run.facts(0)["window"]) == (0, 0)


def test_a_window_is_deregistered_while_it_is_used(version: str) -> None:
    """A window that is deregistered while an all-reduce on it has not finished breaks a rule."""
    run = play("in_use", version=version)
    assert_broken(run, "W13")
    assert both(run, "sum") == [[3.0]] * 2


def test_injected_failure_on_one_rank() -> None:
    """A registration that fails on one rank only leaves the other waiting, and both without windows."""
    run = play("failing_on_one", faults="ncclCommWindowRegister:fail@1=3#rank1", **IN_VAIN)
    assert_broken(run, "W1", "W12")
    assert both(run, "first") == [2, 3]
    assert both(run, "second") == [2, 3]


def test_injected_delay_on_one_rank() -> None:
    """A registration that is slow on one rank keeps the other waiting just as long."""
    run = play("later_on_one", faults="ncclCommWindowRegister:slow@1=300ms#rank1")
    run.assert_good()
    assert min(both(run, "ended")) - run.facts(1)["begun"] >= 0.3, run.output

"""The holes of PyTorch's own registration, each shown by two runs of one job: by torch's own means, and by tracehook's.

"stock" is torch's older NCCL group; "nccl2", the default from 2.15 on, registers by itself. What only the stock group
gets wrong is tested with that one, the rest with the default. A test fails too when PyTorch mends its hole. More holes
are in test_torch_hook.py; the cases are those of jobs/holes.py.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.rehearsal import Rehearsal, rehearse
from support.symmetric import NEW, OLD, alike, assert_broken, both
from support.torch_versions import BY_ITSELF, needs_nccl2

DEFAULT = "nccl2" if BY_ITSELF else "stock"
both_groups = pytest.mark.parametrize("group", ["stock", pytest.param("nccl2", marks=needs_nccl2)])
STOCK = {"TORCH_DIST_USE_NCCL2": "0"}
EVERYWHERE = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}  # the stock group registers all segments
EXPANDABLE: dict[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
HANG = 3  # seconds after which the emulation ends what would hang in NCCL for ever
HANGS = {"TRACEHOOK_EMU_WINDOW_TIMEOUT": str(HANG)}
TIMEOUT = 2  # SYMM_REGISTER_TIMEOUT where a rank does not come
SLOW = {"freed": 4, "stalled": 10}  # by case: seconds that the first local registration takes
NOT_CALLED = [0, 0, 0]  # all-reduces, window registrations, window deregistrations


def half(case: str, by: str, *how: str, group: str = DEFAULT, ranks: int = 2, log: Path, **env: str) -> Rehearsal:
    """Run the case by torch or by tracehook alone."""
    changes = {**({"TORCH_DIST_USE_NCCL2": "1"} if group == "nccl2" else STOCK), **env}
    logs = log if by == "tracehook" else None
    faults = f"ncclCommRegister:slow@1={SLOW[case]}s" if case in SLOW else ""
    return rehearse(
        "holes.py", case, by, *how, log=logs, devices=2, ranks=ranks, faults=faults, env=changes, timeout=90
    )


def play(
    case: str,
    *how: str,
    log: Path,
    group: str = DEFAULT,
    ranks: int = 2,
    only_torch: dict[str, str] | None = None,
    only_tracehook: dict[str, str] | None = None,
    **env: str,
) -> tuple[Rehearsal, Rehearsal]:
    """Run the case by torch and by tracehook, side by side."""
    with ThreadPoolExecutor(2) as pool:
        first, second = (
            pool.submit(half, case, by, *how, group=group, ranks=ranks, log=log, **env, **(more or {}))
            for by, more in (("torch", only_torch), ("tracehook", only_tracehook))
        )
    return first.result(), second.result()


def assert_hung(run: Rehearsal, *ranks: int) -> None:
    """Assert that these ranks waited in a window registration until the emulation ended it."""
    assert_broken(run, "W1")
    for rank in ranks:
        facts = run.facts(rank)
        assert facts["error"] is not None, run.output
        assert facts["seconds"] >= HANG - 0.1, run.output


def assert_refused(run: Rehearsal, *texts: str) -> None:
    """Assert that tracehook raised this on all ranks, before NCCL was called, and that nothing was broken."""
    run.assert_good()
    for rank in (0, 1):
        assert all(part in said(run, "error", rank) for part in texts), run.output
        assert run.facts(rank)["reached"] == NOT_CALLED, run.output


def said(run: Rehearsal, name: str, rank: int = 0) -> str:
    """Return the text of what was raised, or nothing."""
    found: list[str] | None = run.facts(rank)[name]
    return found[1] if found else ""


# --- ends ---


def test_pool_after_the_last_group(tmp_path: Path) -> None:
    """After destroy_process_group a pool of torch's makes an allocation raise, and its end ends the process."""
    by_torch, by_tracehook = play("after_the_end", log=tmp_path, group="stock", ranks=0)
    assert_broken(by_torch, "C4")
    facts = by_torch.facts()
    assert (facts["registered"], facts["undone"]) == (1, 0), "left on a communicator that was finalized"
    assert "NCCL communicator was aborted" in said(by_torch, "allocation")
    assert by_torch.finished.lines("terminate called after throwing an instance of 'c10::DistBackendError'")
    assert "end" not in facts, by_torch.output
    by_tracehook.assert_good()
    facts = by_tracehook.facts()
    assert (facts["allocation"], facts["end"]) == (None, "reached")
    assert facts["registered"] == facts["undone"] == len(by_tracehook.events("register.local")) > 0


@pytest.mark.skipif(
    not torch.__version__.startswith("2.11."), reason="mended since: windows go to the function for windows"
)
def test_abort_with_a_window(tmp_path: Path) -> None:
    """At an abort torch gives windows to the function for local registrations; tracehook leaves them to the abort."""
    by_torch, by_tracehook = play("abort", log=tmp_path)
    assert_broken(by_torch, "W9")
    assert (alike(by_torch, "undone"), alike(by_torch, "dropped")) == (1, 0)
    by_tracehook.assert_good()
    assert (alike(by_tracehook, "sum"), alike(by_tracehook, "windows")) == (3.0, 1)
    assert alike(by_tracehook, "dropped") == 0
    assert len(by_tracehook.events("communicator.abort")) == 2


# --- births ---


def test_segment_that_goes_while_a_group_is_made(tmp_path: Path) -> None:
    """Torch's hook registers a segment that was freed since its snapshot, which fails the group; tracehook does not."""
    by_torch, by_tracehook = play("freed", log=tmp_path, group="stock", ranks=0, only_torch=EVERYWHERE)
    assert_broken(by_torch, "L3")
    assert "Failed to register segment" in said(by_torch, "error")
    assert by_torch.facts()["calls"] == 1, "it went while another one was being registered"
    by_tracehook.assert_good()
    assert by_tracehook.facts()["error"] is None
    assert len(by_tracehook.events("segment.free")) == 1
    assert len(by_tracehook.events("register.local")) > 0


@needs_nccl2
def test_memory_while_a_group_is_made(tmp_path: Path) -> None:
    """While nccl2 registers with a new group, cached memory of another device waits; with tracehook it does not."""
    by_torch, by_tracehook = play("stalled", log=tmp_path, ranks=0, only_tracehook=STOCK)
    by_torch.assert_good()
    assert by_torch.facts()["waited"] >= SLOW["stalled"]
    by_tracehook.assert_good()
    assert by_tracehook.facts()["waited"] < SLOW["stalled"]
    assert len(by_tracehook.events("register.local")) == 1, "which was the slow one"


@needs_nccl2
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="nccl2's own tracker locks at every event of the allocator"
)
def test_memory_while_a_group_is_made_with_nccl2(tmp_path: Path) -> None:
    """Cached memory of another device is had at once."""
    by_tracehook = half("stalled", "tracehook", group="nccl2", ranks=0, log=tmp_path)
    assert by_tracehook.facts()["waited"] < SLOW["stalled"]


# --- what is registered ---


@both_groups
def test_registered_memory_becomes_symmetric(tmp_path: Path, group: str) -> None:
    """A pool that torch registered locally gets no windows any more, in silence with the stock group."""
    policy = {"SYMM_REGISTER_POLICY": "shared"}  # memory of one group is to serve another one
    by_torch, by_tracehook = play("becomes_symmetric", log=tmp_path, group=group, only_tracehook=policy)
    assert (alike(by_torch, "sum"), alike(by_torch, "windows")) == (3.0, 0)
    if group == "nccl2":
        assert "already registered with symm=False" in said(by_torch, "error")
    else:
        assert said(by_torch, "error") == ""
        assert_broken(by_torch, "W9")  # it then takes the registration for a window
    by_tracehook.assert_good()
    assert (alike(by_tracehook, "before"), alike(by_tracehook, "same")) == (False, True)
    assert (alike(by_tracehook, "symmetric"), alike(by_tracehook, "sum")) == (True, 3.0)
    for rank in (0, 1):
        window = by_tracehook.events("register.window", rank)[-1]
        local = [e["seq"] for e in by_tracehook.events("register.local", rank) if e["comm_id"] == window["comm_id"]]
        assert local, "registered locally as well"
        assert min(local) < window["seq"]


def test_expandable_segments_are_said(tmp_path: Path) -> None:
    """Expandable segments are not registered, which torch does not say; tracehook does, once."""
    by_torch, by_tracehook = play("expandable", log=tmp_path, ranks=0, only_torch=EVERYWHERE)
    by_torch.assert_good()
    assert (by_torch.facts()["sum"], by_torch.facts()["registered"]) == (1.0, 0)
    assert by_torch.finished.lines("expandable") == []
    by_tracehook.assert_good()
    assert by_tracehook.facts()["sum"] == 1.0
    assert [event["reason"] for event in by_tracehook.events("hook.unsupported")] == ["expandable_segments"]
    assert len(by_tracehook.finished.lines("tracehook: hook.unsupported: expandable segments")) == 1
    assert by_tracehook.events("register.local") == []


@pytest.mark.parametrize("when", ["filled", "empty"])
def test_symmetric_memory_with_expandable_segments(tmp_path: Path, when: str) -> None:
    """A pool of expandable segments gets windows that NCCL dies of, or none if it was registered while empty."""
    env: dict[str, Any] = {**EXPANDABLE, "TRACEHOOK_EMU_NCCL_VERSION": OLD}
    by_torch, by_tracehook = play("symmetric_expandable", when, log=tmp_path, **env)
    if when == "filled":
        assert_broken(by_torch, "W7")
        assert both(by_torch, "sum") == [1.0, 2.0], "nothing was added; the device's error is still to come"
    else:
        by_torch.assert_good()
        assert (alike(by_torch, "sum"), alike(by_torch, "windows")) == (3.0, 0)
    by_tracehook.assert_good()
    assert (alike(by_tracehook, "sum"), alike(by_tracehook, "windows")) == (3.0, 1)


@needs_nccl2
def test_segment_that_was_expandable(tmp_path: Path) -> None:
    """An older expandable segment goes while nccl2 has it registered; tracehook registers only what comes after it."""
    by_torch, by_tracehook = play("was_expandable", log=tmp_path, ranks=0, only_tracehook=STOCK, **EXPANDABLE)
    assert_broken(by_torch, "L4")
    assert by_torch.facts()["before"] == 1
    by_tracehook.assert_good()
    assert (by_tracehook.facts()["before"], by_tracehook.facts()["registered"]) == (0, 1)


@needs_nccl2
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="nccl2 made the registration and ignores that expandable memory goes"
)
def test_segment_that_was_expandable_with_nccl2(tmp_path: Path) -> None:
    """Memory that goes is deregistered before."""
    half("was_expandable", "tracehook", group="nccl2", ranks=0, log=tmp_path, **EXPANDABLE).assert_good()


def test_foreign_allocator(tmp_path: Path) -> None:
    """A group in a process with an allocator of its own ends the process with torch's hook; tracehook stands aside."""
    by_torch, by_tracehook = play("pluggable", log=tmp_path, group="stock", ranks=0, only_torch=EVERYWHERE)
    assert by_torch.finished.lines("terminate called")
    assert "error" not in by_torch.facts(), by_torch.output
    by_tracehook.assert_good()
    assert (by_tracehook.facts()["error"], by_tracehook.facts()["sum"]) == (None, 1.0)
    assert [e["reason"] for e in by_tracehook.events("hook.unsupported")] == ["foreign_allocator"]
    assert len(by_tracehook.finished.lines("tracehook: hook.unsupported:")) == 1
    assert by_tracehook.events("register.local") == []


@needs_nccl2
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="nccl2 asks the allocator for a snapshot, and nothing turns that off"
)
def test_foreign_allocator_with_nccl2(tmp_path: Path) -> None:
    """A group can be made in a process with an allocator of its own."""
    half("pluggable", "tracehook", group="nccl2", ranks=0, log=tmp_path).assert_good()


# --- communicators ---


@both_groups
def test_no_symmetric_memory(tmp_path: Path, group: str) -> None:
    """Without symmetric support torch has no windows and does not say so, or fails the allocation with nccl2."""
    by_torch, by_tracehook = play("unsupported", log=tmp_path, group=group, TRACEHOOK_EMU_WINDOWS="null")
    if group == "nccl2":
        assert "does not support symmetric memory" in said(by_torch, "error")
    else:
        by_torch.assert_good()
        assert (said(by_torch, "error"), alike(by_torch, "sum")) == ("", 3.0)
        assert by_torch.finished.lines("symmetric") == []
    by_tracehook.assert_good()
    assert (said(by_tracehook, "error"), alike(by_tracehook, "sum")) == ("", 3.0)
    assert alike(by_tracehook, "reason") == "no_symmetric_support"
    assert len(by_tracehook.finished.lines("this communicator has no symmetric memory")) == 2, "one a rank"


def test_before_the_communicator(tmp_path: Path) -> None:
    """A pool cannot be registered before the stock group's first collective; a scope makes the communicator."""
    by_torch, by_tracehook = play("before_the_communicator", log=tmp_path, group="stock")
    assert "NCCL communicator has not been initialized" in said(by_torch, "error")
    by_tracehook.assert_good()
    assert (alike(by_tracehook, "windows"), alike(by_tracehook, "sum")) == (1, 3.0)


def test_groups_in_opposite_order(tmp_path: Path) -> None:
    """Ranks that register one memory with two groups in opposite order hang; scopes use one order."""
    by_torch, by_tracehook = play("groups_in_opposite_order", log=tmp_path, only_torch=HANGS)
    assert_hung(by_torch, 0, 1)
    by_tracehook.assert_good()
    assert alike(by_tracehook, "sums") == [3.0, 3.0]
    assert len(by_tracehook.events("register.window")) == 4


def test_many_groups(tmp_path: Path) -> None:
    """Torch's stock hook registers with many groups in the order of their addresses, in which the ranks hang."""
    by_torch, by_tracehook = play("many_groups", log=tmp_path, group="stock", only_torch=HANGS)
    assert_hung(by_torch, 0, 1)
    by_tracehook.assert_good()
    assert (alike(by_tracehook, "sums"), alike(by_tracehook, "windows")) == ([3.0] * 24, 24)


# --- ranks that come apart ---


def test_pool_that_grows_earlier_on_one_rank(tmp_path: Path) -> None:
    """A symmetric pool that grows on one rank first hangs that rank; tracehook names the other, and nothing is lost."""
    short = {"SYMM_REGISTER_TIMEOUT": "30", "TEST_IN_VAIN": str(TIMEOUT)}
    by_torch, by_tracehook = play("grows", log=tmp_path, only_torch=HANGS, only_tracehook=short)
    assert_hung(by_torch, 0)
    by_tracehook.assert_good()
    for facts in by_tracehook.told:
        assert facts["error"][0] == "RegistrationTimeout", by_tracehook.output
        assert f"rank 1 did not come within the {TIMEOUT} s that rank 0 waited" in facts["error"][1]
        assert facts["reached"] == NOT_CALLED
    assert TIMEOUT <= by_tracehook.facts(0)["seconds"] < TIMEOUT + 10
    assert (alike(by_tracehook, "symmetric"), alike(by_tracehook, "sum")) == (True, 3.0), "together they can"


@pytest.mark.parametrize(("sizes", "version"), [("equal", OLD), ("unequal", OLD), ("unequal", NEW)])
def test_pool_that_grows_in_opposite_order(tmp_path: Path, sizes: str, version: str) -> None:
    """Two tensors of a pool in opposite order are a wrong sum, or NCCL's error; tracehook refuses them on all ranks."""
    by_torch, by_tracehook = play("opposite_order", sizes, log=tmp_path, TRACEHOOK_EMU_NCCL_VERSION=version)
    if (sizes, version) == ("unequal", OLD):
        assert_broken(by_torch, "W2")
        assert all("Failed to" in said(by_torch, "error", rank) for rank in (0, 1))
    else:
        assert_broken(by_torch, "W16")
        assert both(by_torch, "error") == [None, None], "no rank notices"
        assert both(by_torch, "sum") == [201.0, 2.0], "should be 3"
    if sizes == "equal":
        assert_refused(by_tracehook, "'placement of all_reduce'", "rank 0 wants 'send buffer in window 0", "window 1")
    else:
        assert_refused(
            by_tracehook,
            "'register windows'",
            "rank 0 wants 'a segment of 33554432",
            "rank 1 wants 'a segment of 67108864",
        )
        assert by_tracehook.events("register.window") == []


def test_reuse_on_one_rank(tmp_path: Path) -> None:
    """A place in a window that only one rank gets again is a wrong sum in silence; tracehook refuses its use."""
    by_torch, by_tracehook = play("reused", log=tmp_path)
    assert_broken(by_torch, "W16")
    assert both(by_torch, "error") == [None, None]
    assert both(by_torch, "sum") == [1001.0, 2.0], "should be 3"
    assert_refused(by_tracehook, "'placement of all_reduce'", "window 0 at byte 0'", "window 0 at byte 8388608'")
    assert alike(by_tracehook, "windows") == 1


# --- captures ---


@both_groups
def test_pool_that_grows_during_a_capture(tmp_path: Path, group: str) -> None:
    """Until NCCL 2.30.7 a symmetric pool that grows in a capture ends it; tracehook registers what is new later."""
    by_torch, by_tracehook = play("capture", log=tmp_path, group=group, TRACEHOOK_EMU_NCCL_VERSION=OLD)
    assert_broken(by_torch, "W6")
    assert "cudaErrorStreamCaptureInvalidated" in said(by_torch, "error")
    by_tracehook.assert_good()
    assert (said(by_tracehook, "error"), alike(by_tracehook, "sum")) == ("", 3.0)
    assert (alike(by_tracehook, "reason"), alike(by_tracehook, "synced")) == ("deferred", 1)
    assert alike(by_tracehook, "later") == "symmetric"

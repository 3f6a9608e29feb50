"""Faults that users reported to other projects: what their programs did ends with a sentence on every rank."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse
from support.torch_versions import TORCH

TIMEOUT = 20  # seconds, of an agreement: nothing here takes that long
LONG = 60  # seconds that the emulated NCCL waits for a window, and a job for a collective
HANG = 5  # the same where a rank waits in vain
# Its allocator orders free blocks by when they were made, where it no longer does by their addresses.
MAY_KEEP_ORDER = TORCH >= (2, 13)
WINDOW = "register a window of the program's own"


def play(case: str, log: Path | None, faults: str = "", version: str = "22809", hang: int = LONG) -> Rehearsal:
    """Play a case on two ranks; without `log` without tracehook."""
    env = {
        "SYMM_REGISTER_TIMEOUT": str(TIMEOUT),
        "TRACEHOOK_EMU_WINDOW_TIMEOUT": str(hang),
        "TRACEHOOK_EMU_NCCL_VERSION": version,
    }
    # A collective counts as one that hangs only after its partner has given up.
    return rehearse("reports_of_users.py", case, str(hang + 1), log=log, ranks=2, faults=faults, env=env, timeout=90)


def alone(case: str, *rules: str, faults: str = "", hang: int = LONG) -> list[dict[str, Any]]:
    """Play a case without tracehook; these rules of NCCL are broken. Return what both ranks told."""
    run = play(case, None, faults, hang=hang)
    assert (run.status, run.broken) == (RULES_BROKEN, sorted(rules)), run.output
    assert "tracehook:" not in run.finished.err
    return [run.facts(rank) for rank in (0, 1)]


def sentence(run: Rehearsal, fact: str) -> str:
    """Return what both ranks raised alike, without what NCCL and torch say before it."""
    first, second = (run.facts(rank)[fact].partition("tracehook: ")[2] for rank in (0, 1))
    assert first, run.output
    assert first == second, run.output
    assert re.match(r"communicator [0-9a-f]{16} \((group 0, )?2 ranks\): ", first)
    return str(first)


def said_by_both(run: Rehearsal, fact: str, rank: int) -> str:
    """Return what `rank` raised, which the other rank, for which it waited, says on stderr too."""
    text = str(run.facts(rank)[fact].partition("tracehook: ")[2])
    assert text, run.output
    assert len(run.finished.lines(text)) == 2, run.output
    return text


def assert_other_places(text: str) -> None:
    """Assert that it says which rank's buffer lies in which window, and what to do."""
    assert "the ranks differ at 'placement of all_reduce'" in text
    assert "rank 0 wants 'send buffer in window 0 at byte 0'; rank 1 wants 'send buffer in window 1 at byte 0'" in text
    assert "allocate and free the tensors of scopes in one order" in text


def assert_swap_was_found(run: Rehearsal) -> None:
    """Assert that all ranks heard at which call they used other windows, after it."""
    text = sentence(run, "later")
    assert re.search(
        r"the ranks used different memory at call \d: rank 0 made all_reduce, send buffer in window 0", text
    )
    assert "rank 1 made all_reduce, send buffer in window 1" in text
    assert "start again from what was saved before" in text


def test_windows_that_differ_in_a_capture(tmp_path: Path) -> None:
    """SGLang #34230: other warm-ups leave another free window on each rank for a capture, which is refused there."""
    assert [facts["sum"] for facts in alone("other_warm_ups", "W16")] != [3, 3]
    run = play("other_warm_ups", tmp_path / "new").assert_good()
    assert_other_places(sentence(run, "captured"))
    # Where the warm-up used both windows, none of the placements is new: they are compared after the capture.
    run = play("other_warm_ups_known", tmp_path / "known")
    assert_swap_was_found(run)


def test_a_window_registered_in_a_capture(tmp_path: Path) -> None:
    """VLLM #54626: a window that is registered in a capture is refused before NCCL, and the capture is not lost."""
    assert all("CUDA error" in facts["capture"] for facts in alone("registered_in_a_capture", "W6"))
    run = play("registered_in_a_capture", tmp_path / "old").assert_good()
    text = sentence(run, "registered")
    assert f"all ranks want to {WINDOW} (25165824 bytes, flags 1) while a stream is captured" in text
    assert "Register before the capture" in text
    for facts in run.told:
        assert (facts["registered_called"], facts["capture"], facts["sum"]) == (0, "", 3.0), run.output
    run = play("registered_in_a_capture", tmp_path / "new", version="23007").assert_good()
    assert [run.facts(rank)["sum"] for rank in (0, 1)] == [3.0, 3.0], "NCCL 2.30.7 registers beside a capture"


def test_a_rank_without_memory_for_its_window(tmp_path: Path) -> None:
    """TensorRT-LLM #12125: one rank has no memory for a window; the other hears which call it made, and both go on."""
    faults = "ncclMemAlloc:fail@2=1#rank1"
    assert alone("out_of_memory_later", "W1", faults=faults, hang=HANG)[1]["hangs"] is True
    run = play("out_of_memory_later", tmp_path, faults).assert_good()
    told = run.facts(0)["registered"]
    assert f'rank 0 waits at "{WINDOW}" before call 1; rank 1 made call 1 (all_reduce' in told
    assert [run.facts(rank)["reduced"] for rank in (0, 1)] == ["", ""], "that call works when both make it"
    assert [run.facts(rank)["sum"] for rank in (0, 1)] == [6.0, 6.0]


def test_a_rank_without_memory_for_its_first_window(tmp_path: Path) -> None:
    """TensorRT-LLM #12125: also at the first window of all both ranks say who made a call without it, and go on."""
    run = play("out_of_memory", tmp_path, "ncclMemAlloc:fail@1=1#rank1").assert_good()
    text = said_by_both(run, "registered", 0)
    assert f'rank 0 waits at "{WINDOW}" before call 0; rank 1 made call 0' in text
    assert [run.facts(rank)["sum"] for rank in (0, 1)] == [3.0, 3.0]


def test_addresses_in_another_order_than_windows(tmp_path: Path) -> None:
    """PyTorch #190977: torch's pool gives the lowest address again, which lies in another window on each rank."""
    run = play("other_addresses", None)
    if MAY_KEEP_ORDER and run.broken == ["W7"]:
        pytest.skip("the pool of this torch has tensors where no window may begin, so no program can register them")
    again = [run.facts(rank)["again"] for rank in (0, 1)]
    if MAY_KEEP_ORDER and again[0] == again[1]:
        run.assert_good()
        return
    assert (again, run.broken) == ([0, 1], ["W16"]), run.output
    run = play("other_addresses", tmp_path / "new").assert_good()
    assert [run.facts(rank)["ascending"] for rank in (0, 1)] == [True, False]
    assert_other_places(sentence(run, "reduced"))
    run = play("other_addresses_known", tmp_path / "known")
    assert_swap_was_found(run)

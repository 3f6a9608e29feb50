"""`@pytest.mark.rehearse`: a test's body on ranks, as a package of somebody else uses it."""

import sys
from pathlib import Path

import pytest
from support.processes import Finished, run
from support.rehearsal import EXAMPLES

BAD = """
import pytest, torch, torch.distributed as dist

@pytest.mark.rehearse(devices=2)
def test_raises():
    assert dist.get_rank() == 0, "a bug on rank 1"

@pytest.mark.rehearse(devices=2)
def test_raises_many():
    raise ExceptionGroup("two at once", [ValueError("one"), ValueError("other")])

@pytest.mark.rehearse(devices=2)
def test_differs():
    seen = dist.get_rank()
    assert 7 * seen == 0

@pytest.mark.rehearse(devices=2, hang_timeout=3)
def test_hangs():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(4, device="cuda"))
        torch.cuda.synchronize()
    else:
        import time
        time.sleep(60)

@pytest.mark.rehearse(devices=2)
def test_breaks_a_rule():
    size = 4 if dist.get_rank() == 0 else 8
    dist.all_reduce(torch.zeros(size, device="cuda"))
    torch.cuda.synchronize()

@pytest.mark.rehearse(device=2)
def test_misspelt():
    pass

@pytest.mark.rehearse(devices=2)
def test_takes_a_function(request):
    pass

class TestMethods:
    @pytest.mark.rehearse(devices=2)
    def test_method(self):
        pass

def test_ordinary():
    pass
"""


def check(folder: Path, *arguments: str) -> Finished:
    """Run pytest there."""
    return run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], {}, timeout=200, cwd=folder
    )


@pytest.mark.timeout(250)
def test_the_example_passes() -> None:
    """Three tests, on four ranks each."""
    finished = check(EXAMPLES / "checks")
    assert finished.status == 0, finished.output
    assert "3 passed" in finished.out


@pytest.mark.timeout(250)
def test_what_goes_wrong_on_a_rank_fails_the_test(tmp_path: Path) -> None:
    """An exception, a hang, a broken rule, and markers that mean nothing; tests without the marker run as ever."""
    (tmp_path / "test_bad.py").write_text(BAD)
    finished = check(tmp_path)
    assert "8 failed, 1 passed" in finished.out, finished.output
    for told in (
        "rehearsal on 2 ranks: rank 1: AssertionError: a bug on rank 1",
        ": ExceptionGroup: two at once (2 sub-exceptions)",
        "rehearsal on 2 ranks: rank 1: AssertionError: assert (7 * 1) == 0",
        "rehearsal on 2 ranks: ranks waited for each other: rank 0 waits in ncclAllReduce of 4 float32",
        "rank 1 did not come, and waits in no other call",
        "rehearsal on 2 ranks: a rule of NCCL was broken: M1 x2: the ranks of one operation called different things",
        "@pytest.mark.rehearse does not know device",
        "argument 'request' of test_takes_a_function",
        "test_method is a method: write a function",
    ):
        assert told in finished.out, (told, finished.output)
    report = finished.out.split("_ test_raises _")[1].split("_ test_differs _")[0].splitlines()
    of_rank_1 = [at for at, line in enumerate(report) if line.startswith("rank 1: ")]
    assert of_rank_1[0] == 2, "the traceback comes before all that torchrun prints"
    assert 'assert dist.get_rank() == 0, "a bug on rank 1"' in report[of_rank_1[2]]
    assert not any("body.py" in line for line in report), "it begins in the test"


OUTCOMES = """
import pytest, torch.distributed as dist

@pytest.mark.rehearse(devices=2)
def test_skips():
    pytest.skip("not on this device")

@pytest.mark.rehearse(devices=2)
def test_is_expected_to_fail():
    pytest.xfail("a known bug")

@pytest.mark.rehearse(devices=2)
def test_differs():
    if dist.get_rank() == 1:
        pytest.skip("not on this rank")
"""


@pytest.mark.timeout(250)
def test_what_all_ranks_skip_is_skipped(tmp_path: Path) -> None:
    """And if one rank alone skips, the test fails."""
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    finished = check(tmp_path, "-rs")
    assert "1 failed, 1 skipped, 1 xfailed" in finished.out, finished.output
    assert "not on this device" in finished.out
    assert "rehearsal on 2 ranks: 1 of them ended by Skipped: not on this rank" in finished.out

"""Ranks that lost their connection to one that had ended in order."""

from dataclasses import replace

import pytest

from tracehook.audit import blame
from tracehook.audit.called import Caller, Callers
from unit.test_blame import SECOND, caller

LOST = "RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:2445"


def left(rank: int, seconds: float) -> Caller:
    """Return a rank that ended in order."""
    return replace(caller(rank, {}), ended=True, how="exit", signal=None, sender=None, ended_ns=int(seconds * SECOND))


def left_at_once(rank: int, seconds: float) -> Caller:
    """Return a rank that ended itself by os._exit(0)."""
    return replace(left(rank, seconds), ended=False, how="os._exit", status=0)


def raised(rank: int, seconds: float, exception: str = LOST) -> Caller:
    """Return a rank that an exception ended."""
    return replace(left(rank, seconds), how="exception", exception=exception)


@pytest.mark.parametrize(
    ("processes", "ranks", "told"),
    [
        ([raised(0, 3), left(1, 2), raised(2, 3)], (1, 0, 2), "rank 1 ended in order, while others still talked to it"),
        ([raised(0, 3), left_at_once(1, 2)], (1, 0), "rank 1 ended in order, while others still talked to it"),
        ([left(0, 2), left(1, 2), raised(2, 3)], (2, 0, 1), "rank 2 went on where ranks 0 and 1, which are more,"),
    ],
    ids=["one ended", "one called os._exit", "most ended"],
)
def test_of_ranks_that_ended_and_ranks_that_went_on_the_few_are_named(processes, ranks, told):
    """Whoever ended first, or whoever went on alone."""
    (finding,) = blame.findings(Callers(processes, {}))
    assert (finding.rule, finding.ranks, finding.ns) == ("rank-missing", ranks, 2 * SECOND)
    assert told in finding.message
    assert LOST in finding.message


@pytest.mark.parametrize(
    "processes",
    [
        [raised(0, 1), left(1, 2)],
        [raised(0, 3, "ValueError: of its own"), left(1, 2)],
        [raised(0, 3), left(1, 2), raised(2, 1, "ValueError: of its own")],
    ],
    ids=["ended later", "another exception", "another one failed before"],
)
def test_a_rank_that_ended_in_order_is_not_named_for_anything_else(processes):
    """Neither for what it could not cause, nor for what another one did before."""
    assert blame.findings(Callers(processes, {})) == []


IN_VAIN = "RuntimeError: [unbound_buffer.cc:87] Timed out waiting 15000ms for send operation to complete"


def ended_later(rank: int, seconds: float) -> Caller:
    """Return a rank that a launcher ended, some time after others had failed."""
    return replace(caller(rank, {}), ended_ns=int(seconds * SECOND))


def test_ranks_that_gave_up_in_gloo_are_not_named_first():
    """But the one for which they waited."""
    job = Callers([raised(0, 3, IN_VAIN), raised(1, 3, IN_VAIN), ended_later(2, 4)], {})
    (finding,) = blame.findings(job)
    assert (finding.rule, finding.ranks, finding.ns) == ("rank-missing", (2, 0, 1), 3 * SECOND - 1)
    assert finding.message.startswith("rank 2 did not come to a call of torch.distributed, outside of NCCL; ranks 0")
    assert "cannot tell" not in finding.message


def test_of_several_that_did_not_come_to_gloo_none_is_named_alone():
    """Their calls into NCCL cannot tell."""
    (finding,) = blame.findings(Callers([raised(0, 3, IN_VAIN), ended_later(1, 4), ended_later(2, 4)], {}))
    assert finding.ranks == (1, 2, 0)
    assert "ranks 1 and 2 did not come" in finding.message
    assert "cannot tell which of them is wrong" in finding.message


@pytest.mark.parametrize(
    "processes",
    [[raised(0, 3, IN_VAIN), raised(1, 1, "ValueError: of its own")], [raised(0, 3, IN_VAIN), raised(1, 3, IN_VAIN)]],
    ids=["another one failed before", "all gave up"],
)
def test_nobody_is_missed_where_that_is_known_to_be_no_cause(processes):
    """One that failed before is named for that, by a rule."""
    assert blame.findings(Callers(processes, {})) == []

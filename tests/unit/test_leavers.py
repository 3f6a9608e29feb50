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


def raised(rank: int, seconds: float, exception: str = LOST) -> Caller:
    """Return a rank that an exception ended."""
    return replace(left(rank, seconds), how="exception", exception=exception)


@pytest.mark.parametrize(
    ("processes", "ranks", "told"),
    [
        ([raised(0, 3), left(1, 2), raised(2, 3)], (1, 0, 2), "rank 1 ended in order, while others still talked to it"),
        ([left(0, 2), left(1, 2), raised(2, 3)], (2, 0, 1), "rank 2 went on where ranks 0 and 1, which are more,"),
    ],
    ids=["one ended", "most ended"],
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

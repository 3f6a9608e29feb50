"""Findings of ranks that did alike are one row, and a row shows a divergence only where ranks differ."""

from dataclasses import replace

import pytest

from tracehook.audit.finding import Finding, cause_of, first_finding, fold, in_order
from tracehook.log.text import ranges_of, told_ranges


def found(message: str, *ranks: int, rule: str = "a", **more: object) -> Finding:
    """Return a finding as rules make them."""
    made = Finding(rule, "error", message, ranks, None, None, 1000 * (ranks[0] if ranks else 0), None)
    return replace(made, **more)  # type: ignore[arg-type]


def told(*findings: Finding) -> list[tuple[str, tuple[int, ...]]]:
    """Return messages and ranks of the rows."""
    return [(row.message, row.ranks) for row in fold(findings)]


def test_times_and_addresses_may_differ() -> None:
    """Times become a span. An address is one process's own, so it goes unless it is the same."""
    one = found("rank 0 waited 2.001 s for segment 1 at 0x7f00 (2 MiB) of 3", 0)
    other = found("rank 1 waited 1.999 s for segment 1 at 0x7e00 (2 MiB) of 3", 1)
    assert told(one, other) == [("ranks 0, 1 waited 1.999-2.001 s for segment 1 (2 MiB) of 3", (0, 1))]
    same = found("rank 1 waited 2.001 s for segment 1 at 0x7f00 (2 MiB) of 3", 1)
    assert told(one, same) == [("ranks 0, 1 waited 2.001 s for segment 1 at 0x7f00 (2 MiB) of 3", (0, 1))]


def test_whatever_else_differs_stays_apart() -> None:
    """Another size, communicator, severity or rule; and another rank that is not the rank's own."""
    assert len(fold([found("rank 0 held 2 MiB", 0), found("rank 1 held 4 MiB", 1)])) == 2
    assert len(fold([found("rank 0 ended", 0), found("rank 1 ended", 1, rule="b")])) == 2
    assert len(fold([found("rank 0 ended", 0), found("rank 1 ended", 1, comm="c")])) == 2
    assert len(fold([found("rank 0 ended", 0), found("rank 1 ended", 1, severity="warning")])) == 2
    assert len(fold([found("rank 0 waited for rank 1", 0), found("rank 1 waited for rank 0", 1)])) == 2
    assert len(fold([found("ranks 1, 2 differ", 1, 2), found("ranks 1, 2 differ", 1, 2)])) == 2
    assert len(fold([found("pid 4 ended"), found("pid 4 ended")])) == 2


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2, 4, 6, 7, 8, 9], "0-2, 4, 6-9"), ([], "")]
)
def test_ranks_are_named_in_runs(ranks: list[int], text: str) -> None:
    """Runs of three and more."""
    assert told_ranges(ranges_of(ranks), most=None) == text


def test_the_earliest_error_comes_first() -> None:
    """Or else the earliest warning; one of no known moment last."""
    warning = found("early", 0, severity="warning", ns=1)
    error, unknown = found("late", 0, ns=2), found("no moment", 0, ns=None)
    assert first_finding([unknown, error, warning]) is error
    assert first_finding([warning]) is warning
    assert first_finding([]) is None
    assert in_order([unknown, error, warning]) == [warning, error, unknown]


@pytest.mark.parametrize(
    ("first", "message", "ranks", "is_cause"),
    [
        ("calls-differ", "rank 1 ended by OutOfMemoryError: CUDA out of memory", (1,), True),
        ("rank-missing", "rank 1 ended by ValueError: bad batch", (1,), True),
        ("rank-missing", "rank 0 ended by ValueError: bad batch", (0,), False),
        ("calls-differ", "rank 1 ended by DistBackendError: NCCL error, invalid usage", (1,), False),
        ("rank-missing", "rank 1 ended by RuntimeError: [/pytorch/third_party/gloo/x.cc:1] Timed out", (1,), False),
        ("calls-differ", "ranks 0, 1 ended by ValueError: NaN", (0, 1), False),
        ("exit-status", "rank 1 ended by ValueError: bad batch", (1,), False),
    ],
)
def test_an_exception_of_its_own_may_be_why_a_rank_called_something_else(first, message, ranks, is_cause):
    """On its way out, in a ``finally``, it called what the others did not. What others caused is no cause."""
    differs = found("rank 1 differs", 1, 0, rule=first)
    raised = found(message, *ranks, rule="ended-by-exception", ns=9000)
    assert (cause_of(differs, [differs, raised]) is raised) == is_cause

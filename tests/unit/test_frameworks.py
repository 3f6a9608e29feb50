"""What the table of `make frameworks` says of a run, and which runs fail it."""

import pytest
from frameworks.cases import Case
from frameworks.run import judge

PLAIN = Case("some", "job", ("python",), "job.py")
KILLING = Case("some", "job", ("python",), "job.py", findings={"no-end": "it kills its workers"})


@pytest.mark.parametrize(
    ("case", "status", "ranks", "findings", "said", "problem"),
    [
        (PLAIN, 0, 4, set(), "clean", ""),
        (PLAIN, 1, 4, set(), "clean", "exit status 1"),
        (PLAIN, 0, 3, set(), "clean", "3 ranks registered memory, expected 4"),
        (PLAIN, 0, 4, {"no-end"}, "no-end (not expected)", "findings of the audit"),
        (KILLING, 0, 4, {"no-end"}, "no-end (it kills its workers)", ""),
        (KILLING, 86, 4, {"no-end"}, "no-end (it kills its workers)", "exit status 86"),
    ],
)
def test_what_a_run_is_called(case: Case, status: int, ranks: int, findings: set[str], said: str, problem: str) -> None:
    """Findings are no problem only if it is known that the framework itself causes them."""
    assert judge(case, status, ranks, findings) == (said, problem)

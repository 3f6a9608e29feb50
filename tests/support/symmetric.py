"""Run the jobs about symmetric memory on two ranks, and ask what both say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

OLD, NEW = "22809", "23007"
TIMEOUT = 30  # SYMM_REGISTER_TIMEOUT: every rank comes within it, also on a busy machine
SHORT = 2  # seconds, where a rank does not come: see `in_vain` of jobs/symmetric_tools.py


def play(
    job: str | Path,
    *arguments: str,
    log: Path,
    version: str = OLD,
    faults: str = "",
    timeout: float = 90,
    **env: str,
) -> Rehearsal:
    """Run the job on two ranks; what waits in vain waits for SHORT seconds."""
    changes = {
        "SYMM_REGISTER_TIMEOUT": str(TIMEOUT),
        "TEST_IN_VAIN": str(SHORT),
        "TRACEHOOK_EMU_NCCL_VERSION": version,
        **env,
    }
    return rehearse(job, *arguments, ranks=2, log=log, faults=faults, env=changes, timeout=timeout)


def both(run: Rehearsal, name: str) -> list[Any]:
    """Return one fact of both ranks."""
    return [run.facts(rank).get(name) for rank in (0, 1)]


def alike(run: Rehearsal, name: str) -> Any:
    """Return the fact that both ranks tell alike."""
    first, second = both(run, name)
    assert first == second, run.output
    assert first is not None, run.output
    return first


def assert_broken(run: Rehearsal, *rules: str) -> None:
    """Assert that these rules of NCCL were broken, no others, that the status says so, and no process is left."""
    assert run.broken == sorted(rules), run.output
    assert run.status == RULES_BROKEN, run.output
    assert not run.finished.late, run.output
    assert run.finished.orphans == 0, run.output


def communicator(run: Rehearsal) -> str:
    """Return the key of the only communicator in the logs."""
    keys: set[str] = {event["comm"] for event in run.events("communicator.ready")}
    assert len(keys) == 1, keys
    return keys.pop()

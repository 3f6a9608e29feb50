"""The audit of jobs that ran on real devices."""

from __future__ import annotations

import re
from pathlib import Path

from gpu.launch import IN_VAIN, ROOT, launch
from gpu.test_gpu_symmetric import play, told
from tracehook.audit.finding import first_finding
from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.audit.verdict import Filter, Verdict, judge


def audited(directory: Path) -> Verdict:
    """Return what ``tracehook audit`` says of the logs."""
    with Store(directory) as store:
        return judge(store, check(store), Filter())


def test_a_clean_job_is_clean(ranks: int, tmp_path: Path) -> None:
    """Groups, splits, an abort, frees: nothing is found, and what was looked at is not nothing."""
    result = launch(ROOT / "examples" / "tour.py", ranks, tmp_path)
    verdict = audited(tmp_path)

    assert result.status == 0, result.output
    assert {finding.rule for finding in verdict.findings} <= IN_VAIN, verdict.sentence
    assert verdict.looked.registrations >= 10 * ranks


def test_symmetric_memory_of_two_groups_is_clean(ranks: int, tmp_path: Path) -> None:
    """Windows on several communicators: alike on all ranks, and all undone."""
    result = play("symmetric_groups.py", ranks=ranks, log=tmp_path)
    verdict = audited(tmp_path)

    assert result.status == 0, result.output
    assert verdict.clean, verdict.sentence
    assert verdict.looked.windows > 0


def test_the_silent_wrong_sum_is_named(ranks: int, tmp_path: Path) -> None:
    """With SYMM_REGISTER_GUARD=off a swap gives wrong sums and no error; the audit names ranks and buffers."""
    result = play("symmetric_cases.py", "swapped_unseen", "leave", ranks=ranks, log=tmp_path, SYMM_REGISTER_GUARD="off")
    wrong = [facts["wrong"] for facts in told(result, ranks)]
    first = first_finding(audited(tmp_path).findings)

    assert any(value != ranks * (ranks + 1) / 2 for pair in wrong for value in pair), wrong
    assert first is not None
    assert first.rule == "placement-differs"
    assert set(first.ranks) >= {0}, first
    assert re.search(r"rank 0 in window 0 at byte 0 \(pool segment \d+ at 0x\w+, 32 MiB\)", first.message), (
        first.message
    )
    assert re.search(r"in window 1 at byte 0 \(pool segment \d+ at 0x\w+, 32 MiB\)", first.message), first.message


def test_a_killed_rank_is_named_with_what_it_held(ranks: int, tmp_path: Path) -> None:
    """The last rank is killed in the middle: nothing that it logged before is missing."""
    job = ROOT / "tests" / "rehearsal" / "jobs"
    launch(job / "killed.py", ranks, tmp_path, PYTHONPATH=str(job))
    killed = [finding for finding in audited(tmp_path).findings if finding.rule == "no-end"]
    (last,) = [finding for finding in killed if finding.ranks == (ranks - 1,)]

    assert re.search(r"held: 4 segments .* and 4 registrations", last.message), last.message
    assert not [finding for finding in audited(tmp_path).findings if finding.rule == "lost-events"]

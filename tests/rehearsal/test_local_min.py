"""SYMM_REGISTER_LOCAL_MIN: small segments are followed, and not registered."""

from __future__ import annotations

from pathlib import Path

from support.audits import CLEAN, FINDINGS, Audit
from support.rehearsal import rehearse

MB = 1 << 20


def test_only_segments_of_that_size_are_registered(tmp_path: Path) -> None:
    """Of segments of 24 and 48 MiB only the larger one is registered with the communicators. The audit is clean."""
    run = rehearse("plain.py", ranks=2, log=tmp_path, env={"SYMM_REGISTER_LOCAL_MIN": "32MiB"})
    run.assert_good()
    assert {event["size"] for event in run.events("segment.alloc")} >= {24 * MB, 48 * MB}
    registered = [event["size"] for event in run.events("register.local")]
    assert registered
    assert set(registered) == {48 * MB}
    Audit(tmp_path).expect(CLEAN)


def test_a_size_that_one_rank_alone_has_is_a_finding(tmp_path: Path) -> None:
    """NCCL may need a buffer to be registered on all ranks: the audit names the ranks whose size differs."""
    run = rehearse("plain.py", ranks=2, log=tmp_path, env={"SYMM_REGISTER_LOCAL_MIN": "32MiB"})
    run.assert_good()
    log = run.log(1).path
    log.write_text(log.read_text().replace('"local_min":33554432', '"local_min":0', 1))
    Audit(tmp_path).expect(FINDINGS, "local_min is", "33554432 on rank 0", "0 on rank 1")

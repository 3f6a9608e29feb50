"""A job whose logs have a bound: they stay below it, and the audit proves what is left and claims no more."""

import os
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Self

import pytest
from support.audits import FINDINGS, Audit
from support.rehearsal import rehearse

SECONDS = float(os.environ.get("TRACEHOOK_TEST_BOUNDED_SECONDS", "12"))
LIMIT = 8 << 20  # bytes a process
RANKS = 4
BLOCK = 512  # bytes, of st_blocks


class Du:
    """What the files of each rank take on the disk, looked at again and again."""

    def __init__(self, folder: Path, period: float) -> None:
        self._folder = folder
        self._period = period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.most = Counter[str]()  # bytes, by rank

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.look()

    def _run(self) -> None:
        while not self._end.wait(self._period):
            self.look()

    def look(self) -> None:
        """Add up what is there now."""
        now = Counter[str]()
        for file in self._folder.glob("*"):
            try:
                size = file.stat().st_blocks * BLOCK
            except FileNotFoundError:  # it was thrown away meanwhile
                continue
            if (found := re.search(r"\.rank(\d+)\.", file.name)) is not None:
                now[found[1]] += size
        self.looks += bool(now)
        self.most |= now


@pytest.mark.timeout(SECONDS + 160)
def test_a_fault_in_what_is_left_is_found_and_nothing_is_claimed_of_what_was_thrown_away(tmp_path: Path) -> None:
    """The audit names the rank and the segment of the late fault, and says from when on its answer is a proof."""
    with Du(tmp_path, 0.1 if SECONDS < 60 else 1.0) as du:
        env, patience = {"SYMM_REGISTER_LOG_LIMIT": "8MiB"}, SECONDS + 100
        job = rehearse("bounded.py", str(SECONDS), log=tmp_path, ranks=RANKS, env=env, timeout=patience)
    job.assert_good()
    print(f"{du.looks} looks; most bytes of a rank: {dict(du.most)}; parts: {[log.begin['part'] for log in job.logs]}")
    assert len(du.most) == RANKS
    assert max(du.most.values()) <= LIMIT
    assert min(du.most.values()) > LIMIT / 2, "the limit was never near"
    assert all(log.begin["part"] > 1 for log in job.logs), "nothing was thrown away"
    early, late = job.facts(1)["early"], job.facts(1)["late"]
    assert all(event.get("segment") != early or event["event"] != "segment.free" for event in job.log(1).events)
    done = Audit(tmp_path).expect(FINDINGS, "freed-while-registered", "proof from", "4 logs threw older lines away")
    assert set(re.findall(r"(rank \d+) (?:freed|deregistered) segment (\d+)", done.out)) == {("rank 1", str(late))}, (
        done
    )

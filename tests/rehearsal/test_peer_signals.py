"""Peers that wait for signals: who did not send them is named. More of them are played in unit/test_peer_waits.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from audit.goldens import audit
from support.rehearsal import rehearse_until

MISUSE = "by PeerTensor.get(), which sends no signal: PeerGroup.get(tensor) does"


def ended(log: Path, ranks: int, *how: str) -> tuple[str, list[Any]]:
    """Run the ring until an operator ends it; return the audit's last line, and its errors."""
    rehearse_until(10, "peer_signals.py", *how, ranks=ranks, log=log, timeout=120)
    text, findings = audit(log)
    return text.splitlines()[-2], [each for each in json.loads(findings) if each[1] == "error"]


def test_signals_that_no_rank_sends(tmp_path: Path) -> None:
    """All read by the call that sends none, and wait for each other: no rank is more to blame than another."""
    everybody = list(range(4))
    last, found = ended(tmp_path / "log", 4, *map(str, everybody))
    assert [(rule, sorted(named)) for rule, _, named, _ in found] == [("rank-missing", everybody)], last
    assert (
        "wait for each other in PeerGroup.wait, for signals that nobody sent: rank 0 waits for signal 1 of rank 1; "
        in last
    )
    assert MISUSE in last
    assert re.search(r"; ranks 0-\d are at peer_signals\.py:\d+ in ring", last), last
    assert "What to do now: Call PeerGroup.get(tensor)" in last


@pytest.mark.parametrize(("ranks", "wrong"), [(2, 1), (4, 3)])
def test_a_rank_that_sends_no_signal_is_named_first(tmp_path: Path, ranks: int, wrong: int) -> None:
    """Only one reads by that call. Its left neighbour waits for it, and all others for that one, in a barrier."""
    last, found = ended(tmp_path / "log", ranks, str(wrong))
    assert [(rule, named[0]) for rule, _, named, _ in found] == [("rank-missing", wrong)], last
    owner = wrong - 1
    assert (
        f"rank {owner} waits in PeerGroup.wait for signal 1 of rank {wrong} (rank {wrong} sent none, and read" in last
    )
    assert f"read a tensor of rank {owner} by PeerTensor.get(), which sends no signal)" in last
    assert "What to do now: Call PeerGroup.get(tensor)" in last

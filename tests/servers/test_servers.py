"""SGLang's and vLLM's own modules for NCCL, unchanged, with the variable alone. ``make integrations`` fetches them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import ROOT, Rehearsal, rehearse

FETCHED = ROOT / "build" / "servers"
NEWEST = ("sglang/srt/plugins", "vllm/plugins")  # what older versions of fetch.py did not fetch
HERE = Path(__file__).parent
SERVERS = ("sglang", "vllm")
ADVICE = {"swapped": "window 1", "mixed": "outside of all windows"}

pytestmark = [
    pytest.mark.skipif(
        not all((FETCHED / name).exists() for name in NEWEST),
        reason="the servers' modules are not here: make integrations",
    ),
    pytest.mark.skipif(shutil.which("g++") is None, reason="the servers compile their allocators: no g++"),
]


def play(log: Path, server: str, case: str, timeout: float = 120, job: str = "job.py", plugin: str = "") -> Rehearsal:
    """Play one case on two ranks."""
    seconds = "3" if case == "missing" else "30"  # only there a rank waits in vain
    env = {"FETCHED": str(FETCHED), "SYMM_REGISTER_TIMEOUT": seconds, "TRACEHOOK_EMU_NCCL_VERSION": "23007"}
    return rehearse(
        HERE / job, server, case, log=log, ranks=2, env=env | {"SYMM_REGISTER_INTEGRATIONS": plugin}, timeout=timeout
    )


@pytest.mark.parametrize("server", SERVERS)
def test_its_communicator_and_its_windows_are_known(server: str, tmp_path: Path) -> None:
    """Its communicator holds torch's segments, its windows are in the log and agreed on; the audit finds nothing."""
    run = play(tmp_path, server, "alike")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["sum"], facts["raised"], facts["left"]) == (3.0, "", []), run.output
        assert facts["known"] == [[rank, 2, True]]
        made = run.events("register.window", rank)
        assert [(event["ordinal"], event["size"], event["observed"]) for event in made] == [
            (0, 32 << 20, True),
            (1, 32 << 20, True),
        ]
        assert len(run.events("agreement.reached", rank)) == 2
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


@pytest.mark.parametrize("case", ["swapped", "mixed"])
@pytest.mark.parametrize("server", SERVERS)
def test_buffers_at_different_places_are_refused_on_every_rank(server: str, case: str, tmp_path: Path) -> None:
    """Each rank's process says which window each rank wants, instead of a wrong sum or a hang."""
    run = play(tmp_path, server, case)
    run.assert_good()
    for rank in (0, 1):
        assert "invalid" in run.facts(rank)["raised"].lower(), run.output
    lines = run.finished.lines("the ranks differ at 'placement of all_reduce'")
    assert len(lines) == 2, run.output
    assert all(ADVICE[case] in line for line in lines)


@pytest.mark.parametrize("server", SERVERS)
def test_windows_of_other_sizes_are_refused_on_every_rank(server: str, tmp_path: Path) -> None:
    """The sizes are named before NCCL is called."""
    run = play(tmp_path, server, "unequal")
    run.assert_good()
    assert all(run.facts(rank)["raised"] for rank in (0, 1)), run.output
    lines = run.finished.lines("rank 0 wants '33554432 bytes, flags 1'; rank 1 wants '67108864 bytes, flags 1'")
    assert len(lines) == 2, run.output


@pytest.mark.parametrize("server", SERVERS)
def test_a_rank_that_registers_nothing_is_named(server: str, tmp_path: Path) -> None:
    """With SGLang it waits in NCCL by then, for a collective that only it makes, and says so itself."""
    run = play(tmp_path, server, "missing", timeout=60)
    said, count = {"sglang": ("rank 1 made call 1", 2), "vllm": ("rank 1 did not come to ", 1)}[server]
    lines = [line for line in run.finished.err.splitlines() if said in line and line.startswith("tracehook: ")]
    assert len(lines) == count, run.output

"""The examples run with the hook on, and leave nothing registered."""

import json
import re
import shutil
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.packages import install
from support.processes import SCRIPTS, run
from support.rehearsal import CHOICE, EXAMPLES, rehearse

from tracehook.audit.summary import summarise


def test_training_with_ddp(tmp_path: Path) -> None:
    """A DistributedDataParallel job trains, each rank with the default group registered and undone."""
    run = rehearse(EXAMPLES / "train_ddp.py", "--steps", "3", log=tmp_path, ranks=2, torchrun=True, timeout=90)
    run.assert_good()
    assert "step 2: loss" in run.finished.out
    assert [log.rank for log in run.logs] == [0, 1]
    for counts in map(summarise, run.logs):
        assert counts.local.made > 0
        assert (counts.local.left, counts.failures, counts.warnings) == (0, 0, 0)


def test_serving_with_two_groups(tmp_path: Path) -> None:
    """A loop over tensor-parallel and data-parallel groups, with memory given back now and then, stays consistent."""
    run = rehearse(EXAMPLES / "serve_tp_dp.py", "--requests", "12", log=tmp_path, ranks=4, torchrun=True, timeout=120)
    run.assert_good()
    assert "served 12 requests" in run.finished.out
    for counts in map(summarise, run.logs):
        assert counts.communicators >= 3
        assert counts.segments_freed > 0
        assert (counts.local.left, counts.failures, counts.warnings) == (0, 0, 0)


def test_a_cache_of_registrations_takes_no_false_hit(tmp_path: Path) -> None:
    """The driver gives an address to another segment, and the example registers that one anew."""
    run = rehearse(EXAMPLES / "cached_registrations.py", log=tmp_path).assert_good()
    assert run.finished.out == "the same address: True, the same handle: False\nregistered now: 1\n"


def test_tensor_parallelism_with_symmetric_memory(tmp_path: Path) -> None:
    """All layers share one window, registered once, and trim gives its memory back at the end."""
    run = rehearse(EXAMPLES / "symmetric_tp.py", log=tmp_path, ranks=2, torchrun=True, timeout=90).assert_good()
    assert "8 layers, 1 window of 20 MiB" in run.finished.out
    assert "given back at the end: 20 MiB" in run.finished.out
    for rank in (0, 1):
        assert len(run.events("register.window", rank)) == 1
        assert len(run.events("deregister.window", rank)) == 1


SMALL = "--layers 2 --hidden 256 --heads 4 --kv-heads 2 --ffn 512 --context 8 --rounds 3 --replays 2 --check none"
BY_SIZE = """
from tracehook.policies import Answer

def by_size(request):
    if request.nbytes is None:
        return None
    return Answer.SHARED if request.nbytes > 1024 and request.operation == "all_reduce" else Answer.NONE
"""


def test_a_decoder_whose_policy_decides_by_the_batch(tmp_path: Path) -> None:
    """All arms run as graphs; a policy keeps the small batch in ordinary memory, and nothing is left at the end."""
    install(tmp_path / "site", "by_size", "1.0", {"by_size": BY_SIZE}, {"by-size": "by_size:by_size"})
    env = {"SYMM_REGISTER_POLICY": "by-size,shared", "PYTHONPATH": str(tmp_path / "site")}
    arguments = [*SMALL.split(), "--batches", "1,4", "--json", str(tmp_path / "step.json")]
    log = tmp_path / "log"
    run = rehearse(
        EXAMPLES / "tp_decoder.py", *arguments, log=log, ranks=2, torchrun=True, env=env, cold=True, timeout=120
    ).assert_good()
    rows = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert [(row["batch"], row["nbytes"]) for row in rows] == [(1, 512), (4, 2048)]
    arms = ("plain", "symmetric", "policy")
    assert [[row[arm]["symmetric"] for arm in arms] for row in rows] == [[False, True, False], [False, True, True]]
    assert all(len(row[arm]["rounds"]) == 3 for row in rows for arm in arms)
    assert "symmetric, ordinary\n" in run.finished.out
    Audit(log).expect(CLEAN)


def test_a_ring_between_peers(tmp_path: Path) -> None:
    """Ranks gather each other's rows by puts alone, also from a graph that is replayed."""
    run = rehearse(EXAMPLES / "ring.py", log=tmp_path, ranks=4, torchrun=True, timeout=90).assert_good()
    for rank in range(4):
        assert f"rank {rank}: rows [[0.0], [1.0], [2.0], [3.0]]" in run.finished.out, run.output
        for value in (10.0, 20.0):
            assert f"rank {rank}: replayed {[[value + other] for other in range(4)]}" in run.finished.out, run.output
    assert len(run.events("ipc.open")) == len(run.events("ipc.close"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_through_mailboxes(tmp_path: Path, ranks: int) -> None:
    """Each rank gets what its left neighbour sent, one message after the other, whatever their sizes."""
    run = rehearse(EXAMPLES / "send_recv.py", log=tmp_path, ranks=ranks, torchrun=True, timeout=90).assert_good()
    for rank in range(ranks):
        sent = [[100.0 * turn + (rank - 1) % ranks] for turn in range(4)]
        assert f"rank {rank}: {sent}" in run.finished.out, run.output
    assert len(run.events("ipc.open")) == len(run.events("ipc.close"))


def test_a_job_that_loses_a_rank(tmp_path: Path) -> None:
    """The audit names the rank that was killed before those that the launcher ended after it."""
    run = rehearse(
        EXAMPLES / "lost_rank.py", "--steps", "6", "--seconds", "0", log=tmp_path, ranks=4, torchrun=True, timeout=90
    )
    assert run.status == 1, run.output
    Audit(tmp_path).expect(FINDINGS, "(rank-failed): rank 2 ended without a word: SIGKILL")


# With 2.28.9 and 2.30.7, which most tests have: one of each minor version, and both sides of what changed within one
# (tracehook/cpp/nccl/traits.def).
VERSIONS = ("2.27.7", "2.29.2", "2.29.7", "2.30.3", "2.31.2", "2.32.3")
SCOPES = ("2.27.7", "2.29.7", "2.32.3")


@pytest.mark.parametrize(
    ("job", "version"), [*(("tour.py", version) for version in VERSIONS), *(("symmetric_tp.py", v) for v in SCOPES)]
)
def test_a_job_of_four_ranks_runs_on_every_version_of_nccl(tmp_path: Path, job: str, version: str) -> None:
    """The tour registers, splits, captures and aborts; the other one has a scope, whose memory is in a window.

    Each rank of the tour leaves a whole log, and its ledger never differs from the allocator's snapshot.
    """
    major, minor, patch = map(int, version.split("."))
    env = {"TRACEHOOK_EMU_NCCL_VERSION": str(10000 * major + 100 * minor + patch), "SYMM_REGISTER_CHECK": "1"}
    ran = rehearse(EXAMPLES / job, log=tmp_path, ranks=4, torchrun=True, env=env, timeout=150).assert_good()
    Audit(tmp_path).expect(CLEAN, "4 ranks")
    assert [log.rank for log in ran.logs] == list(range(4))
    assert "rehearsal: no rule broken" in ran.finished.out
    if job == "symmetric_tp.py":
        assert [len(ran.events("register.window", rank)) for rank in range(4)] == [1] * 4
        return
    assert "[10/10]" in ran.finished.out
    assert ran.events("ledger.difference") == []
    for log in ran.logs:
        assert (log.ended, log.torn, log.recovered, log.dropped) == (True, False, 0, 0)
        assert (summarise(log).aborted, summarise(log).warnings) == (1, 0)
        numbers = [event["seq"] for event in log.events if "seq" in event]
        assert numbers == list(range(1, len(numbers) + 1))
        assert not log.path.with_suffix(".ring").exists()
        checks = [event["ok"] for event in log.events if event["event"] == "ledger.check"]
        assert checks == [True] * len([event for event in log.events if event["event"] == "communicator.pending"])


def changing(text: str) -> str:
    """Return text of a session without what is another one each time: keys of communicators, and seconds.

    torch gives communicators a name from 2.15 on.
    """
    text = text.replace(", group default_pg:0", "")
    return re.sub(r"\b\d+(\.\d+)? s\b", "TIME", re.sub(r"\b[0-9a-f]{16}\b", "KEY", text))


def test_the_recorded_session_is_what_is_said(tmp_path: Path) -> None:
    """examples/session.txt, line by line; three dots stand for any lines, and within a line for any text."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    recorded = changing((EXAMPLES / "session.txt").read_text())
    # torchrun's own port belongs to whoever is first.
    env = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", CHOICE: "0", "PET_STANDALONE": "1"}
    said = ""
    for command in re.findall(r"^\$ (.+)$", recorded, re.MULTILINE):
        done = run(["bash", "-c", f"{command} 2>&1"], env, 120, cwd=tmp_path)
        said += f"$ {command}\n{changing(done.out)}"
    lines = [".*".join(map(re.escape, line.split("..."))) + "\n" for line in recorded.splitlines()]
    pattern = "".join("(?:.*\n)*?" if line == ".*\n" else line for line in lines)
    assert re.fullmatch(pattern, said), said

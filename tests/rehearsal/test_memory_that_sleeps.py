"""A sleep mode gives memory back to the driver while torch keeps the segments, and puts other memory there.

Random programs of two ranks sleep, wake, communicate, allocate and free. They are right with every kind of such memory
and every setting of tracehook, and the memory comes back as it does without tracehook.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.rehearsal import JOBS, Rehearsal, rehearse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
PRIVATE, SHAREABLE = "0", "1"  # handle types of cuMemCreate
STEPS = "14"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the allocator whose memory sleeps."""
    made = tmp_path_factory.mktemp("sleeper") / "libsleeper.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", made, JOBS / "sleeper.cpp"], check=True)
    return made


def play(library: Path, log: Path, *arguments: str, hook: bool = True, **env: str) -> Rehearsal:
    """Run the job on two ranks. Every result is right, and all memory of the pool comes back."""
    run = rehearse("sleeps.py", str(library), *arguments, ranks=2, log=log, hook=hook, env=env, timeout=150)
    assert run.status in (0, 86), run.output
    for rank in range(2):
        facts: dict[str, Any] = run.facts(rank)
        assert facts["wrong"] == [], run.output
        assert set(facts["gave_back"]) == {0}, run.output
        assert facts["status"] == {"segments": 0, "bytes": 0}, run.output
    return run


@pytest.mark.parametrize(
    ("types", "settings", "seed"),
    [
        (SHAREABLE, {}, "1"),
        (PRIVATE, {"SYMM_REGISTER_MEMORY": "vmm"}, "0"),
        (PRIVATE, {"SYMM_REGISTER_LOCAL": "all"}, "0"),
        (SHAREABLE, {"SYMM_REGISTER_LOCAL": "all"}, "1"),
    ],
)
def test_random_programs_that_sleep_are_right(
    library: Path, tmp_path: Path, types: str, settings: dict[str, Any], seed: str
) -> None:
    """No rule of NCCL is broken, nothing of the pool is registered, and the audit has no finding."""
    run = play(library, tmp_path, types, seed, STEPS, **settings).assert_good()
    pausable = {event["segment"] for event in run.events("segment.alloc") if event.get("memory_kind") == "pausable"}
    assert pausable, run.output
    assert all(min(run.facts(rank)["asleep"]) > 0 for rank in range(2)), run.output
    for rank in range(2):
        changed = {event["segment"] for event in run.events("segment.map", rank)}
        kinds = {event["segment"]: event.get("memory_kind") for event in run.events("segment.alloc", rank)}
        registered = {event["segment"] for event in run.events("register.local", rank)}
        assert changed
        assert not registered & changed, run.output
        assert "pausable" not in {kinds.get(segment) for segment in registered}, run.output
    Audit(tmp_path).expect(CLEAN, "stayed unregistered, because a library can take the memory away")


@pytest.mark.parametrize("types", [PRIVATE, SHAREABLE])
def test_memory_that_sleeps_is_shared_with_no_peer(library: Path, tmp_path: Path, types: str) -> None:
    """A peer would go on to read what was there, and keep it from coming back. Ordinary tensors are shared then."""
    run = play(library, tmp_path, types, "0", "2", "share").assert_good()
    for rank in range(2):
        assert "a library can take its memory away" in run.facts(rank)["refused"]
        assert run.facts(rank)["shared"] == 2.0 - rank


def test_what_was_registered_before_tracehook_knew_of_it_is_undone_before_it_sleeps(
    library: Path, tmp_path: Path
) -> None:
    """The hook began when the tensors were there: it finds out at the first sleep, and registers them no more."""
    run = play(library, tmp_path, SHAREABLE, "0", "2", "late", hook=False, SYMM_REGISTER_LOCAL="all").assert_good()
    for rank in range(2):
        events = run.log(rank).events
        adopted = {event["segment"] for event in run.events("segment.adopt", rank)}
        gone = {event["segment"]: event["seq"] for event in run.events("segment.unmap", rank)}
        undone = {e["segment"]: e["seq"] for e in events if e["event"] == "deregister.local" and e["segment"] in gone}
        assert adopted & undone.keys(), run.output
        assert all(undone[segment] < gone[segment] for segment in undone), run.output
    Audit(tmp_path).expect(CLEAN)


def test_segments_that_sleep_when_tracehook_begins_are_not_taken_for_memory(library: Path, tmp_path: Path) -> None:
    """They would be registered, and no registration with their communicator would work any more."""
    run = play(library, tmp_path, SHAREABLE, "0", "2", "late", "asleep", hook=False, SYMM_REGISTER_LOCAL="all")
    run.assert_good()
    for rank in range(2):
        assert run.facts(rank)["found"] == 2
        assert run.events("communicator.failed", rank) == []
    Audit(tmp_path).expect(CLEAN)


def test_a_registration_that_torch_keeps_is_named(library: Path, tmp_path: Path) -> None:
    """The hook of torch itself registers it and hears of nothing: a rule breaks, and the audit says whose it is."""
    run = play(library, tmp_path, SHAREABLE, "0", "1", TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
    assert "L4" in run.broken, run.output
    audit = Audit(tmp_path)
    audit.expect(FINDINGS, "lost the memory of", "unset TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")
    audit.expect(FINDINGS, "This looks like torch_memory_saver #88 (memory is unmapped and mapped again")


@pytest.mark.parametrize(
    ("types", "register", "broken"), [(SHAREABLE, "1", ["L10"]), (SHAREABLE, "0", []), (PRIVATE, "1", [])]
)
def test_a_graph_whose_memory_slept_is_named_if_nccl_registered_it(
    library: Path, tmp_path: Path, types: str, register: str, broken: list[str]
) -> None:
    """NCCL registers what it can map when the call is captured. Two H200s read zeros after the sleep."""
    run = rehearse(
        "sleeping_graph.py", str(library), types, ranks=2, log=tmp_path, env={"NCCL_GRAPH_REGISTER": register}
    )
    assert run.broken == broken, run.output
    assert run.status == (86 if broken else 0), run.output
    assert [run.facts(rank)["gathered"] for rank in range(2)] == [[1.0, 2.0]] * 2
    noted = [len(run.events("segment.captured", rank)) for rank in range(2)]
    assert noted == [int(register)] * 2, "what cannot be mapped is named, too: NCCL loses a handle of it"
    audit = Audit(tmp_path)
    if register == "1":
        audit.expect(FINDINGS, "that NCCL itself had registered", "set NCCL_GRAPH_REGISTER=0 before the start")
    elif not broken:
        audit.expect(CLEAN)


def test_a_graph_that_is_gone_before_the_memory_sleeps_is_no_finding(library: Path, tmp_path: Path) -> None:
    """With the graph NCCL ends its registration."""
    run = rehearse("sleeping_graph.py", str(library), SHAREABLE, "dropped", ranks=2, log=tmp_path).assert_good()
    assert not any(run.events("segment.captured", rank) for rank in range(2))
    Audit(tmp_path).expect(CLEAN)

"""SYMM_REGISTER_SEGMENTS: which segments are followed and not registered, and who is told."""

import re
import tomllib
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.packages import install
from support.rehearsal import Rehearsal, rehearse

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
MB = 1 << 20
DEFAULT, PRIVATE, OWN, GRAPH, SHARED = (size * MB for size in (24, 26, 28, 30, 32))  # of jobs/left_out.py
SIZES = {DEFAULT, PRIVATE, OWN, GRAPH, SHARED}
VMM = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "auto"}


def _run(tmp_path: Path, **env: str) -> Rehearsal:
    cold = "PYTHONPATH" in env
    run = rehearse("left_out.py", str(tmp_path), ranks=2, log=tmp_path / "logs", env=env, cold=cold).assert_good()
    assert {event["size"] for event in run.events("segment.alloc")} >= SIZES
    return run


def _registered(run: Rehearsal) -> set[int]:
    return {event["size"] for event in run.events("register.local")} & SIZES


def test_pools_with_an_allocator_of_their_own_are_left_out(tmp_path: Path) -> None:
    """All other segments are registered. The log has the pool of each; status, explain() and the audit name the rule.

    The pools: torch's, a MemPool, one with an allocator of its own, a graph's own pool, and one for several graphs.
    """
    run = _run(tmp_path)
    kinds = {event["size"]: event.get("pool_kind") for event in run.events("segment.alloc", 0)}
    assert {size: kinds[size] for size in SIZES} == {
        DEFAULT: None,
        PRIVATE: "private",
        OWN: "own",
        GRAPH: "graph",
        SHARED: "graph",
    }
    assert _registered(run) == SIZES - {OWN}
    told = run.facts()["left_out"]
    assert told["by"] == {"no-own-allocators": {"segments": 1, "bytes": OWN}}
    assert (told["segments"], told["why"]) == (1, "no-own-allocators leaves them out")
    registrations = run.facts()["told"]
    assert registrations[2] == "not registered: no-own-allocators leaves it out"
    assert not any(each.startswith("not registered") for each in registrations[:2] + registrations[3:])
    audit = Audit(tmp_path / "logs")
    audit.expect(CLEAN, "2 segments stayed unregistered by choice (no-own-allocators).")


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        ({"SYMM_REGISTER_SEGMENTS": "no-graph-pools"}, "no-graph-pools"),
        ({"NCCL_GRAPH_REGISTER": "0"}, "NCCL_GRAPH_REGISTER=0"),
    ],
)
def test_pools_of_graphs_are_left_out(tmp_path: Path, env: dict[str, str], rule: str) -> None:
    """By choice, or because the program said no to NCCL, which one line says."""
    run = _run(tmp_path, **env)
    assert _registered(run) == {DEFAULT, PRIVATE}
    assert run.facts()["left_out"]["by"][rule] == {"segments": 2, "bytes": GRAPH + SHARED}
    said = run.finished.lines("NCCL_GRAPH_REGISTER=0 is set, so tracehook leaves out segments of graphs")
    assert len(said) == (2 if "NCCL_GRAPH_REGISTER" in env else 0)  # one a rank
    Audit(tmp_path / "logs").expect(CLEAN, f"4 segments stayed unregistered by choice ({rule}).")


def test_a_program_that_says_no_to_local_registrations(tmp_path: Path) -> None:
    """With NCCL_LOCAL_REGISTER=0 no segment is registered, and one line a rank says so."""
    run = _run(tmp_path, NCCL_LOCAL_REGISTER="0")
    assert run.events("register.local") == []
    said = run.finished.lines("NCCL_LOCAL_REGISTER=0 is set, so tracehook leaves out all segments")
    assert len(said) == 2
    Audit(tmp_path / "logs").expect(CLEAN, "(NCCL_LOCAL_REGISTER=0)")


def test_the_rules_of_the_page(tmp_path: Path) -> None:
    """A package has them: small segments of graphs, and communicators of eight ranks, which there are none of here."""
    page = PAGE.read_text().partition("## Rules for segments")[2]
    blocks = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    ((group, points),) = tomllib.loads(blocks["toml"])["project"]["entry-points"].items()
    install(tmp_path / "site", "my-rules", "1.0", {"my_rules": blocks["python"]}, points, group)
    (name,) = points
    run = _run(tmp_path, PYTHONPATH=str(tmp_path / "site"), SYMM_REGISTER_SEGMENTS=name)
    assert _registered(run) == {DEFAULT, PRIVATE, SHARED}
    assert run.facts()["left_out"]["by"][name] == {"segments": 1, "bytes": GRAPH}
    assert {tuple(event["spared"]) for event in run.events("communicator.pending")} == {(3,)}
    Audit(tmp_path / "logs").expect(CLEAN, f"2 segments stayed unregistered by choice ({name}).")


def test_a_rule_for_communicators_of_so_many_ranks(tmp_path: Path) -> None:
    """It fits both communicators of two ranks, so a call that gains runs on the program's memory, and nobody waits."""
    code = "from tracehook.policies import LeaveOut\nrule = LeaveOut(least_ranks=2, most_ranks=2)\n"
    install(tmp_path, "my-rules", "1.0", {"my_rules": code}, {"pairs": "my_rules:rule"}, "tracehook.segments")
    env = VMM | {"PYTHONPATH": str(tmp_path), "SYMM_REGISTER_SEGMENTS": "pairs"}
    run = rehearse("registered_calls.py", "captured", ranks=2, log=tmp_path / "logs", env=env, cold=True).assert_good()
    assert run.events("register.local") == []
    assert run.facts()["gathered"] == [1.0, 2.0]
    assert run.finished.lines("tracehook: ") == []


def test_only_segments_of_that_size_are_registered_on_all_ranks_alike(tmp_path: Path) -> None:
    """Of segments of 24 and 48 MiB only the larger one is registered with the communicators. The audit is clean.

    A segment that is not left out and not registered would be a finding: the audit believes the mark of the birth
    alone. So would a choice that one rank alone has, as NCCL may need a buffer to be registered on all ranks.
    """
    run = rehearse("plain.py", ranks=2, log=tmp_path, env={"SYMM_REGISTER_SEGMENTS": "from-32MiB"}).assert_good()
    assert {event["size"] for event in run.events("segment.alloc")} >= {24 * MB, 48 * MB}
    assert {event["size"] for event in run.events("register.local")} == {48 * MB}
    Audit(tmp_path).expect(CLEAN)
    log = run.log(1).path
    whole = log.read_text()
    assert '"left_out":[2]' in whole
    log.write_text(whole.replace(',"left_out":[2]', ""))
    Audit(tmp_path).expect(FINDINGS, "rank 1 never registered")
    log.write_text(whole.replace('"segments":["from-32MiB"]', '"segments":["all"]', 1))
    Audit(tmp_path).expect(FINDINGS, "segments is", "from-32MiB on rank 0", "all on rank 1")


@pytest.mark.parametrize("env", [{}, {"NCCL_GRAPH_REGISTER": "0"}])
def test_with_vmm_captured_calls_run_on_registered_memory(tmp_path: Path, env: dict[str, str]) -> None:
    """There tracehook sets NCCL_GRAPH_REGISTER=0 itself, in a launcher too; a program that sets it says no to NCCL."""
    run = rehearse("registered_calls.py", "captured", ranks=2, log=tmp_path, env=VMM | env, torchrun=True).assert_good()
    assert run.facts()["variable"] == "0"
    assert {event["size"] for event in run.events("register.local", 0)} == {24 * MB, 48 * MB}
    assert run.finished.lines("NCCL_GRAPH_REGISTER=0 is set") == []


def test_captured_calls_run_on_the_programs_memory(tmp_path: Path) -> None:
    """Where segments of graphs are left out: by what all ranks of the call have alike, and not by the segment."""
    env = VMM | {"SYMM_REGISTER_SEGMENTS": "no-graph-pools"}
    run = rehearse("registered_calls.py", "captured", ranks=2, log=tmp_path, env=env).assert_good()
    assert run.events("register.local") == []
    assert run.facts()["gathered"] == [1.0, 2.0]

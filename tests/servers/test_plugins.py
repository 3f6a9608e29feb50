"""SGLang and vLLM with tracehook's memory under their functions (docs/integrations.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit.goldens import audit
from support.audits import Audit

from servers.test_servers import SERVERS, play, pytestmark  # noqa: F401  # pytest reads the mark here too

ERRORS = {"swapped": "window 1", "mixed": "outside of all windows"}


@pytest.mark.parametrize("server", SERVERS)
def test_its_windows_are_tracehooks_and_nothing_is_compiled(server: str, tmp_path: Path) -> None:
    """The sum is right, the windows are not others', the audit finds nothing, and no compiler ran."""
    run = play(tmp_path, server, "alike", plugin=server)
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["sum"], facts["raised"], facts["left"], facts["compiled"]) == (3.0, "", [], []), run.output
        made = run.events("register.window", rank)
        assert [(event["ordinal"], event["size"], "observed" in event) for event in made] == [
            (0, 32 << 20, False),
            (1, 32 << 20, False),
        ]
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text
    assert len(run.finished.lines(f"{server}: tracehook makes its symmetric memory")) == 2, run.output


@pytest.mark.parametrize("server", SERVERS)
def test_other_names_leave_it_as_it_is(server: str, tmp_path: Path) -> None:
    """A variable that names another framework replaces nothing."""
    run = play(tmp_path, server, "alike", plugin="megatron")
    run.assert_good()
    assert [event["observed"] for event in run.events("register.window", 0)] == [True, True]
    assert run.facts(0)["compiled"] == ["nccl_allocator"]


@pytest.mark.parametrize("case", ["swapped", "mixed"])
@pytest.mark.parametrize("server", SERVERS)
def test_buffers_at_different_places_are_refused_on_every_rank(server: str, case: str, tmp_path: Path) -> None:
    """Each rank's process says which window each rank wants, instead of a wrong sum or a hang."""
    run = play(tmp_path, server, case, plugin=server)
    run.assert_good()
    assert all("invalid" in run.facts(rank)["raised"].lower() for rank in (0, 1)), run.output
    lines = run.finished.lines("the ranks differ at 'placement of all_reduce'")
    assert len(lines) == 2, run.output
    assert all(ERRORS[case] in line for line in lines)


@pytest.mark.parametrize("server", SERVERS)
def test_contexts_of_other_sizes_raise_on_every_rank(server: str, tmp_path: Path) -> None:
    """Their exits raise the same, with both sizes, and nothing was registered."""
    run = play(tmp_path, server, "unequal", plugin=server)
    run.assert_good()
    raised = [run.facts(rank)["raised"] for rank in (0, 1)]
    assert raised[0] == raised[1], run.output
    assert raised[0].startswith("RegistrationMismatch")
    assert "33554432 bytes" in raised[0]
    assert "67108864 bytes" in raised[0]
    assert run.events("register.window") == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_rank_that_enters_no_context_is_named(server: str, tmp_path: Path) -> None:
    """The other rank says whom it waits for. It waits itself, in a barrier, so the audit says where each of them is."""
    run = play(tmp_path, server, "missing", plugin=server, timeout=60)
    assert run.finished.late
    assert "rank 1 did not come to 'register windows' yet; rank 0 has waited for" in run.finished.err
    (first, *_) = json.loads(Audit(tmp_path, "--json").out)["findings"]
    assert "rank 0 waits for rank 1 in the agreement of tracehook for communicator" in first["message"]
    assert "rank 1 waits for rank 0 in the barrier of torch.distributed" in first["message"]


@pytest.mark.parametrize("server", SERVERS)
def test_a_capture_uses_the_memory_of_its_warm_up(server: str, tmp_path: Path) -> None:
    """The capture registers nothing. What it touched anew is registered by the next context outside of it."""
    run = play(tmp_path, server, "graph", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["captured"], facts["deferred"]) == (facts["warm"], 0), run.output
        assert (facts["symmetric"], facts["beside"]) == (True, False)
        assert facts["sums"] == [5.0, 7.0, 7.0]
        assert (facts["late_deferred"], facts["left_deferred"], facts["later"]) == (1, 0, facts["warm"] + 1)
        assert facts["compiled"] == []
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


@pytest.mark.parametrize("server", SERVERS)
def test_contexts_nest_and_end_on_any_thread(server: str, tmp_path: Path) -> None:
    """A disabled context is ordinary memory, an exception leaves its own in order."""
    run = play(tmp_path, server, "contexts", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        inside = {"inner": True, "outer": True, "part": True}
        assert run.facts(rank)["seen"] == {"alone": False, "disabled": False} | inside, run.output
        assert run.facts(rank)["sums"] == [3.0] * 4


@pytest.mark.parametrize("server", SERVERS)
def test_after_a_reservation_contexts_register_nothing(server: str, tmp_path: Path) -> None:
    """SGLang reserves by its own function, for small tensors too; a program with vLLM calls tracehook.reserve."""
    run = play(tmp_path, server, "reserved", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["before"] == facts["after"] > 1, run.output
        assert facts["sums"] == [3.0] * 4


def test_a_context_that_one_rank_interrupts_goes_on(tmp_path: Path) -> None:
    """SGLang interrupts it where only one rank compiles: nothing is registered then, and the ranks stay alike."""
    run = play(tmp_path, "sglang", "paused", plugin="sglang", job="plugin_job.py")
    run.assert_good()
    assert run.facts(0)["paused"] is False
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["outside"], facts["second"], facts["sums"]) == (None, True, [3.0, 3.0]), run.output


def test_a_buffer_apart_from_the_pool_is_in_a_window(tmp_path: Path) -> None:
    """SGLang's debug check knows tracehook's memory, and names only what is ordinary."""
    run = play(tmp_path, "sglang", "buffer", plugin="sglang", job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["is_window"], facts["symmetric"], facts["bytes"]) == (True, True, 4 << 20), run.output
        assert facts["registering"] is None
        (line,) = facts["lines"]
        assert "1 tensor(s) are NOT" in line
        assert "'ordinary'" in line


def test_the_watchdog_reads_which_registration_waits(tmp_path: Path) -> None:
    """While a rank waits for another one, SGLang's function names the communicator and the group."""
    run = play(tmp_path, "sglang", "watched", plugin="sglang", job="plugin_job.py")
    run.assert_good()
    facts = run.facts(0)
    assert facts["registering"] == f"comm={facts['handle']} group=tp", run.output
    assert facts["after"] is None


@pytest.mark.parametrize("server", SERVERS)
def test_code_for_torch_compile_may_enter_contexts(server: str, tmp_path: Path) -> None:
    """What it makes inside is in windows."""
    run = play(tmp_path, server, "compiled", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        assert (run.facts(rank)["seen"], run.facts(rank)["sums"]) == ([True] * 3, [3.0] * 3), run.output


@pytest.mark.parametrize("server", SERVERS)
def test_without_tracehook_the_servers_own_contexts_serve(server: str, tmp_path: Path) -> None:
    """After tracehook.disable() the server compiles its allocator and registers its own windows."""
    run = play(tmp_path, server, "switched_off", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["symmetric"], facts["sums"]) == ([True, True], [3.0, 3.0]), run.output
        assert facts["compiled"] == ["nccl_allocator"]
        assert ["observed" in event for event in run.events("register.window", rank)] == [False, True]


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_sleeps_gives_nccls_memory_back_too(server: str, tmp_path: Path) -> None:
    """From the moment on at which it sleeps wholly until it wakes; its tensors are as before."""
    run = play(tmp_path, server, "asleep", plugin=server, job="plugin_job.py")
    run.assert_good()
    for rank in (0, 1):
        in_steps = [False] if server == "sglang" else []
        assert run.facts(rank)["suspended"] == [False, *in_steps, True, False] * 2, run.output
        assert run.facts(rank)["sums"] == [3.0, 3.0], run.output
        assert len(run.events("communicator.suspend", rank)) == len(run.events("communicator.resume", rank)) == 2
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text

"""Settings of one call (NCCL 2.31's nccl*Config): the ranks compare them at their first use."""

import json
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import Rehearsal, rehearse

NEW = "23203"
INVALID_ARGUMENT, REFUSED = 4, 5


def play(tmp_path: Path, case: str, **env: str) -> Rehearsal:
    """Play one case on two ranks."""
    common = {"SYMM_REGISTER_TIMEOUT": "30", "TRACEHOOK_EMU_NCCL_VERSION": NEW}
    return rehearse("configurations.py", case, log=tmp_path, ranks=2, env=common | env)


def test_settings_that_are_alike_work(tmp_path: Path) -> None:
    """Each is compared once for an operation, whatever the profilers' tags are; calls without settings never are."""
    run = play(tmp_path, "alike").assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["value"] == 48.0  # 3, 6, 12, 24, and once more
        first = [event["operation"] for event in run.events("placement.first_use", rank)]
        assert first == ["all_reduce_config", "broadcast_config"]
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


def test_settings_count_beside_the_places(tmp_path: Path) -> None:
    """In a window a known place is compared again when the settings are new."""
    run = play(tmp_path, "in_windows").assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["value"] == 96.0
        # With 4, with 8, and without; then the call that has no settings at all.
        first = [event["operation"] for event in run.events("placement.first_use", rank)]
        assert first == [*["all_reduce_config"] * 3, "all_reduce"]
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


@pytest.mark.parametrize(
    ("case", "wishes"),
    [
        ("numbers", ("maxCTAs 4", "maxCTAs 8")),
        ("algorithms", ("algSelection ring", "algSelection not set")),
        ("events", ("launchCompletionEvent not set", "launchCompletionEvent set")),
    ],
)
def test_settings_that_differ_are_refused_on_every_rank(tmp_path: Path, case: str, wishes: tuple[str, str]) -> None:
    """Both ranks hear the field and both values, from NCCL's own function and on stderr, and NCCL is not called."""
    run = play(tmp_path, case).assert_good()
    sentence = "; ".join(f"rank {rank} wants '{wish}'" for rank, wish in enumerate(wishes))
    for facts in run.told:
        assert (facts["result"], facts["called"]) == (REFUSED, 0), run.output
        assert sentence in facts["said"]
    assert len(run.finished.lines(sentence)) == 2, run.output
    text, findings = audit(tmp_path)
    assert [rule for rule, *_ in json.loads(findings)] == ["placement-refused"], text
    assert "refused, because the ranks used different configurations: " in text


def test_without_verification_the_audit_finds_settings_that_differ(tmp_path: Path) -> None:
    """With SYMM_REGISTER_GUARD=off nobody compares, and NCCL is called."""
    run = play(tmp_path, "numbers", SYMM_REGISTER_GUARD="off")
    assert all((run.facts(rank)["result"], run.facts(rank)["called"]) == (0, 1) for rank in (0, 1)), run.output
    text, findings = audit(tmp_path)
    assert [rule for rule, *_ in json.loads(findings)] == ["placement-differs", "placement-digest-differs"], text


def test_the_older_structure_is_read_to_its_end_only(tmp_path: Path) -> None:
    """Version 2.31's has no event, so it agrees with one of 2.32 that sets none."""
    run = play(tmp_path, "old_layout").assert_good()
    assert all((run.facts(rank)["result"], run.facts(rank)["called"]) == (0, 1) for rank in (0, 1)), run.output


def test_a_structure_that_nobody_initialised_is_left_to_nccl(tmp_path: Path) -> None:
    """NCCL refuses it on each rank by itself."""
    run = play(tmp_path, "spoilt")
    for rank in (0, 1):
        assert (run.facts(rank)["result"], run.facts(rank)["called"]) == (INVALID_ARGUMENT, 1), run.output


def test_a_rank_without_settings_is_named(tmp_path: Path) -> None:
    """It compares nothing, and hears that the other one does, which does not go into NCCL."""
    run = play(tmp_path, "one_without")
    facts = run.facts(0)
    assert (facts["result"], facts["called"]) == (REFUSED, 0), run.output
    assert "the ranks differ at call 0: rank 1 made" in facts["said"]
    assert len(run.finished.lines(facts["said"].removeprefix("tracehook: "))) >= 2, run.output


def test_known_settings_that_a_rank_confuses_are_found(tmp_path: Path) -> None:
    """The digests of the ranks differ, and the answer names the call with both settings; then nobody makes another."""
    run = play(tmp_path, "swapped").assert_good()
    for facts in run.told:
        assert facts["result"] == REFUSED, run.output
        assert "rank 0 made all_reduce_config" in facts["said"]
        assert "maxCTAs 4" in facts["said"]
        assert "maxCTAs 8" in facts["said"]

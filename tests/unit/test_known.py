"""The list of known bugs: what each entry must have, and when it bears on a job."""

import re

import pytest

from tracehook import known
from tracehook.audit.rules import rules

BUGS = [pytest.param(bug, id=bug.name) for bug in known.those()]
SENTENCE = re.compile(r"[A-Za-z].*\.")


def test_there_are_thirty_and_each_has_a_name_of_its_own() -> None:
    """Of one name there is one bug."""
    names = [bug.name for bug in known.those()]
    assert len(names) == len(set(names)) >= 30


@pytest.mark.parametrize("bug", BUGS)
def test_an_entry_is_whole(bug: known.Bug) -> None:
    """It depends on what there is to know, names rules of the audit, and has two sentences and an address."""
    assert bug.effect in known.EFFECTS
    assert set(bug.when) <= {*known.VERSIONS, *known.TRAITS, "environment"}
    assert set(bug.seen) <= set(known.SEEN)
    assert set(bug.rules) <= {rule.name for rule in rules()}
    assert not bug.seen or bug.rules, "nobody looks for what no rule finds"
    for name in known.VERSIONS:
        known.parted(bug.when.get(name, "<1"))
    for variable, text in bug.when.get("environment", {}).items():
        assert re.fullmatch(r"[A-Z0-9_]+", variable)
        assert text[0] in "!=", "=VALUE or !=VALUE"
    assert SENTENCE.fullmatch(bug.what), bug.what
    assert SENTENCE.fullmatch(bug.remedy), bug.remedy
    assert bug.source.startswith("https://")
    assert re.fullmatch(r"|20\d\d-(0[1-9]|1[0-2])", bug.reported)


@pytest.mark.parametrize(
    ("version", "limits", "fits"),
    [
        ("22809", "<2.29", True),
        ("22809", ">=2.28.3,<2.28.9", False),
        ("23203", "<2.32.6", True),
        ("2.11.0+cu130", ">=2.11,<2.12", True),
        ("2.12.1", ">=2.11,<2.12", False),
        ("535.183.06", ">=535,<536", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, limits: str, fits: bool) -> None:
    """NCCL's code of a version, torch's text with its build, and the driver's."""
    assert known.fits(version, limits) is fits


def test_limits_that_are_none_are_refused() -> None:
    """A slip of the pen in the list is an error, not a bug that never bears."""
    with pytest.raises(ValueError, match=r"2\.28"):
        known.parted("2.28")


def found(name: str, facts: known.JobFacts) -> known.Bearing | None:
    """Hold the bug of that name against facts."""
    return next(bug for bug in known.those() if bug.name == name).against(facts)


def test_a_bug_bears_for_certain_only_if_all_is_known() -> None:
    """What is not known stands apart, and one thing that is not so rules the bug out."""
    facts = known.JobFacts({"nccl": "22809"}, {"several_hosts": True, "registered": True})
    bearing = found("nccl #2389", facts)
    assert bearing is not None
    assert bearing.because == ("NCCL 2.28.9", "the job has several hosts", "segments are registered")
    assert bearing.if_also == ("the hosts have InfiniBand or RoCE",)
    assert found("nccl #2389", known.JobFacts({"nccl": "23206"}, facts.traits)) is None
    assert found("nccl #2389", known.JobFacts(facts.versions, {"several_hosts": False})) is None


@pytest.mark.parametrize(("value", "bears"), [(None, True), ("0", False), ("1", True)])
def test_a_setting_that_is_not_set_is_not_zero(value: str | None, bears: bool) -> None:
    """`!=0` holds also where the variable is not set; an environment that is unknown leaves it open."""
    environment = {} if value is None else {"NCCL_GRAPH_REGISTER": value}
    bearing = found("sglang #38936", known.JobFacts(traits={"graphs": True}, environment=environment))
    assert (bearing is not None and not bearing.if_also) is bears
    open_ = found("sglang #38936", known.JobFacts(traits={"graphs": True}))
    assert open_ is not None
    assert open_.if_also == ("NCCL_GRAPH_REGISTER is not 0",)


def test_nothing_dangerous_bears_on_a_plain_job_of_one_host() -> None:
    """A job that sets nothing hears nothing at its start, with each NCCL that torch ships."""
    for nccl in ("22809", "22907", "23007"):
        traits = {"several_hosts": False, "infiniband": False, "registered": False, "aarch64": False}
        facts = known.JobFacts({"nccl": nccl, "torch": "2.11.0"}, traits, environment={})
        certain = [one.bug for one in known.bearing_on(facts) if not one.if_also]
        assert [bug.name for bug in certain if bug.is_dangerous and bug.is_of_versions] == []


@pytest.mark.parametrize(("attempt", "bears"), [("0", False), ("2", True)])
def test_a_restart_at_the_same_store_is_known(attempt: str, bears: bool) -> None:
    """The ranks of a first attempt find nothing there."""
    environment = {"TORCHELASTIC_RESTART_COUNT": attempt, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    found = known.bearing_on(known.JobFacts(environment=environment))
    certain = [one.bug.name for one in found if not one.if_also]
    assert ("pytorch #167288" in certain) == bears

"""The audit of logs of real jobs in which one fault was caused each: what it says, to the letter (goldens.py)."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.rehearsal import ROOT
from support.schemas import problems

from audit.goldens import (
    ALIKE,
    DIRECTORY,
    GOLDENS,
    HERE,
    MOST_BYTES,
    Golden,
    lines_of,
    text_and_report,
    unpack,
)
from audit.mutants import apply
from tracehook.audit.rules import apply_rule, rules
from tracehook.audit.store import Store
from tracehook.log.tables import EVENTS

NAMED = [pytest.param(golden, id=golden.name) for golden in GOLDENS]


# Which known bugs the faults look like. Of all other golden logs the audit names none.
LOOK_LIKE = {
    "registrations-uneven": ["nccl, uneven"],
    "registered-in-vain": ["nccl #1115"],
    "registration-without-effect": ["nccl 2.28, no window"],
    "placement-differs": ["pytorch #190977"],
    "placement-digest-differs": ["pytorch #190977"],
    "window-order": ["nccl 2.30.7, order"],
    "window-order-sizes": ["nccl 2.30.7, order"],
    "deregistered-unknown": ["nccl #2259"],
    "retired-while-registered": ["nccl #1115"],
    "unmapped-while-registered": ["torch_memory_saver #88"],
}


class Told(NamedTuple):
    """What the command says of a golden directory: text with the exit status, and the object of --json."""

    golden: Golden
    text: str
    report: dict[str, Any]


@pytest.fixture(scope="module", params=NAMED)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Audit each golden directory once."""
    golden: Golden = request.param
    return Told(golden, *text_and_report(unpack(golden.path, tmp_path_factory.mktemp(golden.name))))


def test_golden(told: Told) -> None:
    """The text, the exit status, and the rule, severity, ranks and communicator of each finding are as expected."""
    assert told.text == (told.golden.path / "expected.txt").read_text()
    assert lines_of(told.report) == (told.golden.path / "expected.json").read_text()


def test_a_fault_looks_like_what_its_conditions_allow(told: Told) -> None:
    """The first finding is of a rule that the bug names, and all that the bug depends on is known to be so."""
    assert [one["bug"] for one in told.report["looks_like"]] == LOOK_LIKE.get(told.golden.name, [])


def test_the_report_fits_its_schema(told: Told) -> None:
    """So do the objects of the other commands: test_json_schemas.py."""
    assert problems("audit", told.report) == []


@pytest.mark.parametrize("golden", NAMED)
def test_cause_comes_first(golden: Golden) -> None:
    """The rules that a fault breaks are those of the table; the first finding is the fault, no consequence."""
    text = (golden.path / "expected.txt").read_text()
    reported = {rule for rule, *_ in json.loads((golden.path / "expected.json").read_text())}
    assert reported == set(golden.rules)
    first = re.search(r"^First (\w+), at .*? \(([\w-]+)\): .*[.?!] What to do now: .*\.$", text, re.MULTILINE)
    assert (first[2] if first else None) == next(iter(golden.rules), None)
    if first:
        assert (first[1] == "divergence") == (golden.name not in ALIKE)
    assert text.endswith(f"exit status {int(bool(golden.rules))}\n")


def test_every_rule_has_a_golden_directory() -> None:
    """A rule without logs in which it finds something is no rule."""
    shown = {golden.name: golden.rules for golden in GOLDENS}
    found = {rule for name, its in shown.items() for rule in its if name == rule or name.startswith(f"{rule}-")}
    assert [rule.name for rule in rules() if rule.name not in found] == []
    assert sorted(path.name for path in DIRECTORY.iterdir()) == sorted(shown)


def test_what_a_rule_needs_can_be_logged() -> None:
    """A rule that needs an event which no log has would never be asked."""
    assert {rule.name: rule.needs - set(EVENTS) for rule in rules() if rule.needs - set(EVENTS)} == {}


@pytest.mark.parametrize("name", ["clean", "placement-differs", "peer-timeout"])
def test_a_rule_that_is_not_asked_would_find_nothing(name: str, tmp_path: Path) -> None:
    """Logs without what a rule needs have no finding of it."""
    with Store(unpack(DIRECTORY / name, tmp_path)) as store:
        store.use_macros()
        there = {row["event"] for row in store.rows("SELECT DISTINCT event FROM event")}
        passed_by = [rule for rule in rules() if rule.needs and not rule.needs & there]
        assert {rule.name: apply_rule(store, rule) for rule in passed_by} == {rule.name: [] for rule in passed_by}
    assert len(passed_by) >= 5


def test_every_mutation_is_seen() -> None:
    """Each bug of mutations/ is put into a core by some row of the table."""
    files = {path.stem for path in (HERE / "mutations").glob("*.patch")}
    assert files == {golden.mutation for golden in GOLDENS if golden.mutation}
    assert all(golden.rules for golden in GOLDENS if golden.mutation)


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch command")
@pytest.mark.parametrize("mutation", sorted({golden.mutation for golden in GOLDENS if golden.mutation}))
def test_mutation_fits_the_sources(mutation: str, tmp_path: Path) -> None:
    """The bugs can still be put into the sources."""
    for room in ("registrar", "windows"):
        shutil.copytree(ROOT / "tracehook" / "cpp" / room, tmp_path / "tracehook" / "cpp" / room)
    apply(mutation, tmp_path)


@pytest.mark.parametrize("golden", NAMED)
def test_no_path_of_a_machine(golden: Golden) -> None:
    """The logs are of jobs that were started by names without folders, and small."""
    for file in golden.path.glob("*.jsonl"):
        assert not re.search(rb'"/\w', file.read_bytes())
    assert sum(file.stat().st_size for file in golden.path.iterdir()) < MOST_BYTES

"""docs/audit.md says of each rule what its file says."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import tracehook
from tracehook.audit.rules import SEVERITIES, Rule, rules
from tracehook.commands import app
from tracehook.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_page_lists_every_rule_with_its_own_sentence() -> None:
    """Name, severity, sentence and advice stand in the table, in the order of the names, and no others."""
    listed = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)

    assert listed == [(rule.name, rule.severity, rule.sentence, rule.advice) for rule in rules()]


def test_every_rule_has_a_severity_that_exists() -> None:
    """Errors and warnings: nothing else is counted. And each says when it shows that ranks diverged."""
    assert {rule.severity for rule in rules()} <= set(SEVERITIES)
    assert {rule.divergence for rule in rules()} == {"always", "unless all", "unless alike", "never"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_every_rule_says_what_to_do_now(rule: Rule) -> None:
    """One sentence, and each setting, command, function and page in it exists."""
    advice = rule.advice
    assert re.fullmatch(r"[A-Z][^|]+\.", advice)
    assert not re.search(r"\. [A-Z]", advice)
    known = {field.metadata["variable"] for field in fields(Settings)}
    assert set(re.findall(r"SYMM_REGISTER_[A-Z_]+", advice)) <= known
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"`tracehook (\w+)", advice)) <= commands
    for name in re.findall(r"tracehook\.(\w+)\(", advice):
        assert callable(getattr(tracehook, name))
    for page in re.findall(r"docs/([\w-]+\.md)", advice):
        assert (PAGE.parent / page).exists()

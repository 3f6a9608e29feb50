"""docs/audit.md says of each rule what its file says."""

from __future__ import annotations

import re
from pathlib import Path

from tracehook.audit.rules import SEVERITIES, rules

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_page_lists_every_rule_with_its_own_sentence() -> None:
    """Name, severity and sentence stand in the table, in the order of the names, and no others."""
    listed = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)

    assert listed == [(rule.name, rule.severity, rule.sentence) for rule in rules()]


def test_every_rule_has_a_severity_that_exists() -> None:
    """Errors and warnings: nothing else is counted."""
    assert {rule.severity for rule in rules()} <= set(SEVERITIES)

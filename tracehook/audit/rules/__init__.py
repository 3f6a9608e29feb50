"""The rules that a job's logs are held against: one file of SQL each, in ``rules/``.

A rule begins with comment lines ``-- severity: error`` (or ``warning``), ``-- sentence: ...``, which says what is
wrong if it selects a row, ``-- advice: ...``, which says in one sentence what to do then, and ``-- divergence: ...``
(finding.py); its name is that of the file. DuckDB takes longer to plan a small question than to answer it. So
``-- needs: EVENT, ...`` names events: the audit leaves the rule out if no log has one of them. And a rule may have two
questions, with a line ``-- then`` between them. The audit puts what the first one selects into the table ``suspect``.
It asks the second one only if that table has a row. A rule returns these columns:

* ``process``: of table ``process``, or NULL
* ``ranks``: the global ranks that it concerns, culprits first; may be empty
* ``comm``: key of the communicator, or NULL
* ``ns``: when, as table ``event`` has it, or NULL
* ``seq``: the event, or NULL
* ``message``: one line

and may use the macros of ``macros.sql``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tracehook.audit import blame, kernel_log, order, stacks
from tracehook.audit.called import read_callers
from tracehook.audit.finding import Finding, in_order
from tracehook.audit.limits import TooMuch
from tracehook.audit.store import Store

SEVERITIES = ("error", "warning")
_FACTS = ("severity", "sentence", "advice", "divergence")
UNCHECKED = "this rule could not be checked"
_NO_ROOM = "Make room on the disk of TMPDIR; if there is some, this job is too large for this rule."
_THEN = "\n-- then\n"


@dataclass(frozen=True)
class Rule:
    """One rule: what selects its findings, and what they mean."""

    name: str
    severity: str
    sentence: str
    advice: str
    divergence: str  # whether a finding shows that ranks diverged: see finding.py
    sql: str
    needs: frozenset[str] = frozenset()  # events; empty: any
    suspects: str = ""  # SQL too; empty: `sql` stands alone


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order of their names. Those of :mod:`blame` have no SQL."""
    found = [file for file in files("tracehook.audit.rules").iterdir() if file.name.endswith(".sql")]
    parsed = [_parse(file.name, file.read_text(encoding="utf-8")) for file in found]
    analysed = [Rule(name, *facts, "") for name, facts in blame.RULES.items()]
    return tuple(sorted(parsed + analysed, key=lambda rule: rule.name))


def _parse(name: str, text: str) -> Rule:
    facts = dict(re.findall(r"^-- (\w+): (.*)$", text, re.MULTILINE))
    needs = frozenset(facts["needs"].split(", ")) if "needs" in facts else frozenset[str]()
    suspects, _, sql = text.rpartition(_THEN)
    said = {fact: facts[fact] for fact in _FACTS}
    return Rule(name.removesuffix(".sql"), **said, sql=sql, needs=needs, suspects=suspects)


def check(store: Store) -> list[Finding]:
    """Apply all rules; return what they found, the earliest first."""
    store.use_macros()
    there = store.events()
    out: list[Finding] = []
    for rule in rules():
        if not rule.sql or (rule.needs and not rule.needs & there):
            continue
        try:
            out.extend(apply_rule(store, rule))
        except TooMuch as problem:
            text = f"{UNCHECKED}: {problem}"
            out.append(Finding(rule.name, "error", text, (), None, None, None, None, _NO_ROOM))
    out = order.after_refusals(out)
    job = read_callers(store)
    blamed = blame.findings(job)
    if not any(each.severity == "error" for each in (*out, *blamed)):
        blamed += blame.given_up_findings(job)
    blamed = order.before_refusals(out, order.who_waits_last(job, blamed))
    out = order.before_hangs(out, blamed)
    return in_order(kernel_log.quote(store, stacks.quote(store, blame.with_last_call(job, out) + blamed)))


def apply_rule(store: Store, rule: Rule) -> list[Finding]:
    """Apply one rule; return what it found. Its macros have to be there (`Store.use_macros`)."""
    if rule.suspects and not store.keep("suspect", rule.suspects):
        return []
    return [_finding(rule, row) for row in store.rows(rule.sql)]


def _finding(rule: Rule, row: dict[str, Any]) -> Finding:
    ranks = tuple(rank for rank in row["ranks"] or () if rank is not None)
    where = (row["comm"], row["process"], row["ns"], row["seq"])
    # A text is NULL as soon as one part of it is, and what a damaged log lacks may be any.
    message = row["message"] or rule.sentence.rstrip(".")
    return Finding(rule.name, rule.severity, message, ranks, *where, rule.advice, rule.divergence)

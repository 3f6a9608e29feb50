"""Write tables into log-schema.md, symmetric.md, registration.md, operations.md and failure-modes.md (known bugs).

Run ``python docs/write_tables.py``. The tables come from tracehook/cpp/events, tracehook/nccl,
tracehook/metrics/table.py and tracehook/known. A test fails when a page has others.
"""

from __future__ import annotations

import re
from pathlib import Path

from tracehook import known
from tracehook.audit.fields import TABLE
from tracehook.log.tables import ABOUT
from tracehook.metrics.table import METRICS
from tracehook.nccl.effect import ROWS
from tracehook.nccl.rules import RULES
from tracehook.versions import nccl_name

PAGE = Path(__file__).with_name("log-schema.md")
BEGIN = "<!-- The tables down to the next comment are written by docs/write_tables.py from tracehook/cpp/events. -->"
END = "<!-- Here they end. -->"
SYMMETRIC = PAGE.with_name("symmetric.md")
BEGIN_RULES = (
    "<!-- The table down to the next comment is written by docs/write_tables.py from tracehook/nccl/rules.py. -->"
)
END_RULES = "<!-- Here it ends. -->"
METRICS_PAGE = PAGE.with_name("operations.md")
BEGIN_METRICS = (
    "<!-- The table down to the next comment is written by docs/write_tables.py from tracehook/metrics/table.py. -->"
)


REGISTRATION = PAGE.with_name("registration.md")
BEGIN_EFFECTS = (
    "<!-- The table down to the next comment is written by docs/write_tables.py from tracehook/nccl/effect.py. -->"
)


FAILURES = PAGE.with_name("failure-modes.md")
BEGIN_BUGS = "<!-- The table down to the next comment is written by docs/write_tables.py from tracehook/known. -->"


def fields() -> str:
    """Return the table of fields."""
    lines = ["| field | meaning |", "|---|---|"]
    for name, field in TABLE.items():
        lines.append(f"| {'**' * field.is_common}`{name}`{'**' * field.is_common} | {field.meaning} |")
    return "\n".join(lines)


def events() -> str:
    """Return the table of events."""
    lines = ["| event | severity | what happened | its own fields |", "|---|---|---|---|"]
    for name, event in ABOUT.items():
        sentence = re.sub(r"{(\w+)}", r"`\1`", event.sentence)
        own = ", ".join(f"`{field}`" for field in event.fields if not TABLE[field].is_common)
        lines.append(f"| `{name}` | {event.severity} | {sentence} | {own} |")
    return "\n".join(lines)


def rules() -> str:
    """Return the table of NCCL's rules by version."""
    lines = ["| NCCL | what it does | its source |", "|---|---|---|"]
    for rule in RULES.values():
        until = f", before {nccl_name(rule.until)}" if rule.until is not None else ""
        files = ", ".join(f"`{file}`" for file in rule.source.split(", "))
        lines.append(f"| from {nccl_name(rule.since)}{until} | {rule.text} | {files} |")
    return "\n".join(lines)


def effects() -> str:
    """Return the table of what a local registration can do."""
    lines = ["| if | a registration has | remedy | NCCL's source |", "|---|---|---|---|"]
    called = {"none": "no effect", "host": "an effect inside the host", "network": "an effect on the network"}
    for row in ROWS:
        lines.append(f"| {row.text} | {called[row.effect]} | {row.remedy} | `{row.source}` |")
    return "\n".join(lines)


def registration_page(text: str) -> str:
    """Return the text of registration.md with a new table."""
    return _between(text, BEGIN_EFFECTS, effects(), END_RULES)


def bugs() -> str:
    """Return the table of known bugs."""
    lines = ["| bug | effect | what happens | if | what helps |", "|---|---|---|---|---|"]
    for bug in known.those():
        more = f" ({', '.join(bug.also)})" if bug.also else ""
        when = f", {bug.reported}" if bug.reported else ""
        conditions = "; ".join(_condition(bug, name) for name in bug.when)
        lines.append(
            f"| [{bug.name}]({bug.source}){more}{when} | {bug.effect} | {bug.what} | {conditions} | {bug.remedy} |"
        )
    return "\n".join(lines)


def _condition(bug: known.Bug, name: str) -> str:
    wanted = bug.when[name]
    if name in known.VERSIONS:
        return f"{name} `{wanted}`"
    if name == "environment":
        return "; ".join(f"`{variable}{text}`" for variable, text in wanted.items())
    return known.TRAITS[name][not wanted]


def failures_page(text: str) -> str:
    """Return the text of failure-modes.md with a new table."""
    return _between(text, BEGIN_BUGS, bugs(), END_RULES)


def metrics() -> str:
    """Return the table of metrics."""
    lines = ["| metric | kind | its own labels | meaning |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the text of log-schema.md with new tables."""
    return _between(text, BEGIN, f"{fields()}\n\n{events()}", END)


def symmetric_page(text: str) -> str:
    """Return the text of symmetric.md with a new table."""
    return _between(text, BEGIN_RULES, rules(), END_RULES)


def metrics_page(text: str) -> str:
    """Return the text of operations.md with a new table."""
    return _between(text, BEGIN_METRICS, metrics(), END_RULES)


def _between(text: str, begin: str, table: str, end: str) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    pages = (
        (PAGE, page),
        (SYMMETRIC, symmetric_page),
        (METRICS_PAGE, metrics_page),
        (REGISTRATION, registration_page),
        (FAILURES, failures_page),
    )
    for file, written in pages:
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")

"""Write the tables of reference.md: variables, and commands with their options.

Run ``python docs/write_reference.py``. They come from tracehook/settings.py and from the help of tracehook/commands.
A test fails when the page has others.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from tracehook.commands import app
from tracehook.settings import table

PAGE = Path(__file__).with_name("reference.md")
BEGIN = "<!-- The {} down to the next comment are written by docs/write_reference.py. -->"
END = "<!-- Here they end. -->"
# What more is to be read about a command: a page, and what the page is called here.
GUIDES = {
    "run": ("operations.md", "Operate"),
    "rehearse": ("rehearsal.md", "Rehearsal"),
    "doctor": ("failure-modes.md#tracehook-does-nothing", "tracehook does nothing"),
    "build-hook": ("compatibility.md", "Versions"),
    "tune": ("tuning.md", "Where symmetric memory is faster"),
    "jobs": ("audit.md#several-jobs-in-one-directory", "several jobs in one directory"),
    "summary": ("getting-started.md#read-the-log", "Read the log"),
    "watch": ("reading.md#watching-a-job", "Watching a job"),
    "stacks": ("failure-modes.md#where-each-rank-is", "Where each rank is"),
    "export": ("log-schema.md#logs-as-parquet", "Logs as Parquet"),
    "audit": ("audit.md", "The audit"),
    "report": ("reading.md#the-report", "The report"),
    "timeline": ("reading.md#the-timeline", "The timeline"),
}

_TABLE = ("| option | default | meaning |", "|---|---|---|")


def settings() -> str:
    """Return the table of variables."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for variable, default, meaning in table():
        linked = re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", meaning)
        lines.append(f"| `{variable}` | {default} | {linked} |")
    return "\n".join(lines)


def commands() -> str:
    """Return the options that several commands have, and a section for each command."""
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rows = Counter(row for command in known.values() for row in _options(command))
    common = [row for row, times in rows.items() if times > 1]
    lines = ["Options of several commands:", "", *_TABLE, *common]
    for name, command in known.items():
        lines += ["", f"### tracehook {name}", "", *_section(name, command, common)]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip()


def _usage(command: Any) -> str:
    """Return how the command is called."""
    arguments = [parameter.name.upper() for parameter in command.params if parameter.param_type_name == "argument"]
    if command.allow_extra_args:
        arguments.append("-- COMMAND")
    return " ".join(["tracehook", command.name, *({"DIRECTORY": "DIR"}.get(name, name) for name in arguments)])


def _text(help_text: str) -> list[str]:
    """Return the paragraphs of a help text."""
    return [re.sub(r"\s+", " ", part).strip().replace("|", r"\|") for part in help_text.split("\n\n") if part.strip()]


def _section(name: str, command: Any, common: list[str]) -> Iterator[str]:
    page, title = GUIDES[name]
    rows = _options(command)
    also = ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows if row in common)
    yield from (f"`{_usage(command)}` (guide: [{title}]({page})){f'; also {also}' if also else ''}", "")
    for part in _text(command.help):
        yield from (textwrap.fill(part, 120, break_on_hyphens=False), "")
    own = [row for row in rows if row not in common]
    if own:
        yield from (*_TABLE, *own)


def _options(command: Any) -> list[str]:
    """Return a row of a table for each option."""
    found = []
    for option in (parameter for parameter in command.params if parameter.param_type_name == "option"):
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        shown = "" if option.is_flag or option.default in (None, "", [], ()) else f"`{option.default}`"
        if option.multiple:
            shown = "any number of times"
        found.append(f"| {names} | {shown} | {' '.join(_text(option.help or ''))} |")
    return found


def written(page: str) -> str:
    """Return the page with new tables."""
    for what, middle in (("variables", settings()), ("commands", commands())):
        before, begin, rest = page.partition(BEGIN.format(what))
        assert begin, f"the page lacks the comment at which the {what} begin"
        page = f"{before}{begin}\n\n{middle}\n\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

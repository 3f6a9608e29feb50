"""Write the tables of reference-settings.md and reference-commands.md: variables, and commands with their options.

Run ``python docs/write_reference.py``. They come from tracehook/settings.py and from the help of tracehook/commands.
A test fails when a page has others.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from tracehook.commands import app
from tracehook.settings import table

SETTINGS = Path(__file__).with_name("reference-settings.md")
COMMANDS = Path(__file__).with_name("reference-commands.md")
BEGIN = "<!-- What follows down to the next comment is written by docs/write_reference.py. -->"
END = "<!-- Here it ends. -->"
# What more is to be read about a command.
GUIDES = {
    "run": "operations.md",
    "rehearse": "rehearsal.md",
    "doctor": "troubleshooting.md",
    "build-hook": "compatibility.md",
    "tune": "tuning.md",
    "jobs": "audit.md#what-it-reads",
    "summary": "getting-started.md#read-the-log",
    "watch": "watch.md",
    "stacks": "troubleshooting.md#where-each-rank-is",
    "export": "export.md",
    "audit": "audit.md",
    "report": "report.md",
    "timeline": "timeline.md#the-timeline",
}


def settings() -> str:
    """Return the table of variables."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for variable, default, meaning in table():
        linked = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", meaning)
        lines.append(f"| `{variable}` | {default} | {linked} |")
    return "\n".join(lines)


def commands() -> str:
    """Return the table of commands, and a section for each."""
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = ["| command | what it does | guide |", "|---|---|---|"]
    lines += [
        f"| [`{_usage(command)}`](#tracehook-{name}) | {_text(command.help)[0]} | [{_guide(name)}]({GUIDES[name]}) |"
        for name, command in known.items()
    ]
    for name, command in known.items():
        lines += ["", f"## tracehook {name}", "", *_section(command)]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip()


def _guide(name: str) -> str:
    return GUIDES[name].partition(".md")[0]


def _usage(command: Any) -> str:
    """Return how the command is called."""
    arguments = [parameter.name.upper() for parameter in command.params if parameter.param_type_name == "argument"]
    if command.allow_extra_args:
        arguments.append("-- COMMAND")
    return " ".join(["tracehook", command.name, *({"DIRECTORY": "DIR"}.get(name, name) for name in arguments)])


def _text(help_text: str) -> list[str]:
    """Return the paragraphs of a help text."""
    return [re.sub(r"\s+", " ", part).strip().replace("|", r"\|") for part in help_text.split("\n\n") if part.strip()]


def _section(command: Any) -> Iterator[str]:
    for part in _text(command.help):
        yield from (textwrap.fill(part, 100, break_on_hyphens=False), "")
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    if not options:
        return
    yield from ("| option | default | meaning |", "|---|---|---|")
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        shown = "" if option.is_flag or option.default in (None, "", [], ()) else f"`{option.default}`"
        if option.multiple:
            shown = "any number of times"
        yield f"| {names} | {shown} | {' '.join(_text(option.help or ''))} |"


def written(page: str, middle: str) -> str:
    """Return a page with a new middle."""
    before, begin, rest = page.partition(BEGIN)
    assert begin, "the page lacks the comment at which the table begins"
    return f"{before}{BEGIN}\n\n{middle}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for file, middle in ((SETTINGS, settings()), (COMMANDS, commands())):
        file.write_text(written(file.read_text(encoding="utf-8"), middle), encoding="utf-8")

"""``tracehook audit``: hold the logs of a job against the rules, and say what came first and what to do now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tracehook.commands.logs_options import Job, LogDirectory, Since, plain, progress_bar, readable, selection, tell

if TYPE_CHECKING:
    from tracehook.audit.finding import Finding
    from tracehook.audit.verdict import Verdict

FINDINGS = 1  # exit status


def audit(
    directory: LogDirectory,
    rank: Annotated[list[int] | None, typer.Option(help="Only findings about this global rank (repeatable).")] = None,
    comm: Annotated[
        list[str] | None, typer.Option(help="Only findings about communicators whose key begins so (repeatable).")
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Ranks that left no log are no finding.")
    ] = False,
    max_findings: Annotated[int, typer.Option(min=0, help="Findings shown of each rule, the earliest; 0: all.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    job: Job = None,
    since: Since = None,
) -> None:
    """Tell from the logs of all ranks whether every buffer was registered where and when it had to be.

    Exit status 0: every rule holds; 1: findings; 2: the directory cannot be used.
    """
    with readable("audit"):
        from tracehook.audit.rules import check
        from tracehook.audit.store import Store
        from tracehook.audit.verdict import Filter, judge

        wanted = Filter(tuple(rank or ()), tuple(comm or ()), allow_incomplete)
        with progress_bar() as progress, Store(directory, selection(job, since), progress) as store:
            verdict = judge(store, check(store, progress), wanted)
            left_out = store.left_out
    tell("audit", left_out)
    if as_json:
        typer.echo(json.dumps(verdict.as_json(), indent=1))
    else:
        _show(verdict, max_findings)
    raise typer.Exit(0 if verdict.clean else FINDINGS)


def _show(verdict: Verdict, most: int) -> None:
    from tracehook.audit.verdict import many

    seen = verdict.looked
    job = f"job {', '.join(seen.jobs)}, " if seen.jobs else ""
    recovered = f" ({seen.recovered:,} of them from rings)" if seen.recovered else ""
    typer.echo(
        f"{plain(verdict.directory)}: {plain(job, 200)}{many(seen.ranks, 'rank')} on {many(seen.hosts, 'host')}, "
        f"{seen.seconds:.1f} s, {seen.events:,} events{recovered}"
    )
    for line in verdict.skipped:
        typer.echo(f"skipped: {plain(line)}")
    if verdict.rows:
        _table(verdict.rows, most)
    typer.echo(plain(verdict.sentence))


def _table(findings: tuple[Finding, ...], most: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("finding", overflow="fold")
    shown: dict[str, int] = {}
    for finding in findings:
        count = shown[finding.rule] = shown.get(finding.rule, 0) + 1
        if most and count > most:
            continue
        moment = "" if finding.ns is None else f"{finding.ns / 1e9:.3f} s"
        style = "bold red" if finding.severity == "error" else "yellow"
        table.add_row(moment, Text(finding.severity, style), finding.rule, Text(plain(finding.message)))
    for rule, count in shown.items():
        if most and count > most:
            table.add_row("", "", rule, Text(f"and {count - most:,} more (--max-findings)", "dim"))
    console = Console()
    # Not cut where nobody looks at the width: a file, a pipe.
    (console if console.is_terminal else Console(width=160)).print(table)

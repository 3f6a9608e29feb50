"""``tracehook audit``: hold the logs of a job against the rules, and say what came first and what to do now."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracehook.commands.logs_options import AsJson, Job, LogDirectory, Since, plain, readable, selection, tell

if TYPE_CHECKING:
    from tracehook.audit.finding import Finding
    from tracehook.audit.recorded import Join
    from tracehook.audit.selection import Selection
    from tracehook.audit.store import Store
    from tracehook.audit.verdict import Verdict

FINDINGS, NOT_WHOLE = 1, 3  # exit statuses
_MOST_BUGS = 3  # that are named


def audit(
    directory: LogDirectory,
    rank: Annotated[
        list[int] | None, typer.Option(metavar="RANK", help="Only findings about this global rank (repeatable).")
    ] = None,
    comm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Only findings about communicators whose key begins so (repeatable)."),
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Ranks that left no log are no finding.")
    ] = False,
    max_findings: Annotated[
        int, typer.Option(min=0, metavar="N", help="Findings shown of each rule, the earliest; 0: all.")
    ] = 5,
    as_json: AsJson = False,
    job: Job = None,
    since: Since = None,
    flight_recorder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The dumps of torch's Flight Recorder (TORCH_FR_DUMP_TEMP_FILE): print the stack and torch's sequence "
            "number of each call that a finding names.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="ray[://HOST:PORT]",
            help="Share the work with Ray: `ray` starts one here, an address is that of a cluster (tracehook[ray]).",
        ),
    ] = None,
) -> None:
    """Tell from the logs of all ranks what is wrong.

    It proves that every buffer was registered where and when it had to be, or says which was not. It names the ranks
    that did not agree, and the rank that a hang waited for. Exit status 0: no findings; 1: findings; 2: it cannot
    use the directory or Ray; 3: a worker of Ray died at each try.
    """
    with readable("audit"):
        from tracehook.audit.rules import check
        from tracehook.audit.verdict import Filter, judge

        wanted = Filter(tuple(rank or ()), tuple(comm or ()), allow_incomplete)
        with _opened(directory, selection(job, since), on) as store:
            verdict = judge(store, check(store), wanted)
            joined = _join(store, verdict, flight_recorder) if flight_recorder is not None else None
            left_out = store.left_out
    tell("audit", left_out)
    if as_json:
        more = {"flight_recorder": joined.as_json()} if joined is not None else {}
        typer.echo(json.dumps(verdict.as_json() | more, indent=1))
    else:
        _show(verdict, max_findings, joined)
    raise typer.Exit(0 if verdict.clean else FINDINGS)


@contextlib.contextmanager
def _opened(directory: Path, selected: Selection, on: str | None) -> Iterator[Store]:
    from tracehook.audit.store import Store

    if on is None:
        with Store(directory, selected) as store:
            yield store
        return
    from tracehook.audit.on_ray import workers_on
    from tracehook.audit.split import NotWhole

    try:
        with workers_on(on) as workers, Store(directory, selected, workers) as store:
            yield store
    except NotWhole as problem:
        typer.echo(f"tracehook audit: {plain(str(problem))}", err=True)
        raise typer.Exit(NOT_WHOLE) from None


def _join(store: Store, verdict: Verdict, dumps: Path) -> Join:
    from tracehook.audit.called import read_callers
    from tracehook.audit.recorded import join

    return join(read_callers(store), verdict.rows, dumps)


def _show(verdict: Verdict, most: int, joined: Join | None) -> None:
    from tracehook.audit import known_bugs
    from tracehook.audit.finding import first_finding
    from tracehook.log.text import many

    seen = verdict.looked
    job = f"job {', '.join(seen.jobs)}, " if seen.jobs else ""
    recovered = f" ({seen.recovered:,} of them from rings)" if seen.recovered else ""
    typer.echo(
        f"{plain(verdict.directory)}: {plain(job, 200)}{many(seen.ranks, 'rank')} on {many(seen.hosts, 'host')}, "
        f"{seen.seconds:.1f} s, {many(seen.events, 'event')}{recovered}"
    )
    if seen.proof_from is not None:
        typer.echo(
            f"proof from {seen.proof_from[:19]} UTC on: {many(seen.shortened, 'log')} threw older lines away, "
            "to stay below SYMM_REGISTER_LOG_LIMIT"
        )
    for line in verdict.skipped:
        typer.echo(f"skipped: {plain(line)}")
    if verdict.rows:
        _print(verdict.rows, most)
    if joined is not None:
        for line in joined.lines:
            typer.echo(plain(line))
    if (first := first_finding(verdict.rows)) is not None:
        for found in verdict.known[:_MOST_BUGS]:
            typer.echo(plain(known_bugs.sentence(found, first)))
    typer.echo(plain(verdict.sentence))


def _print(findings: tuple[Finding, ...], most: int) -> None:
    """Print one line a finding, at most so many of each rule."""
    width = max(len(finding.rule) for finding in findings)
    shown: Counter[str] = Counter()
    for finding in findings:
        shown[finding.rule] += 1
        if not most or shown[finding.rule] <= most:
            moment = "" if finding.ns is None else f"{finding.ns / 1e9:.3f} s"
            typer.echo(f"{moment:>9}  {finding.severity:7}  {finding.rule:{width}}  {plain(finding.message)}")
    for rule, count in shown.items():
        if 0 < most < count:
            typer.echo(f"{'':18}  {rule:{width}}  and {count - most:,} more (--max-findings)")

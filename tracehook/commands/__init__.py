"""The command line: one file a command. Imported by the ``tracehook`` script only, never by a job."""

from __future__ import annotations

import typer

from tracehook.commands import (
    audit,
    build_hook,
    doctor,
    export,
    exporter,
    jobs,
    policies,
    rehearse,
    report,
    rotate,
    run,
    snapshot,
    summary,
    timeline,
    tune,
    watch,
)

app = typer.Typer(
    name="tracehook",
    help="Keeps GPU memory segments registered with the NCCL communicators that use them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# Options after the command are the command's own, also without `--` before it.
_PASS_ON = {"allow_extra_args": True, "allow_interspersed_args": False}
app.command("run", context_settings=_PASS_ON)(run.run)
app.command("rehearse", context_settings=_PASS_ON)(rehearse.rehearse)
app.command("doctor")(doctor.doctor)
app.command("build-hook")(build_hook.build_hook)
app.command("tune")(tune.tune)
app.command("policies")(policies.policies)
app.command("jobs")(jobs.jobs)
app.command("summary")(summary.summary)
app.command("watch")(watch.watch)
app.command("rotate")(rotate.rotate)
app.command("export")(export.export)
app.command("exporter")(exporter.exporter)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("timeline")(timeline.timeline)
app.command("snapshot")(snapshot.snapshot)


def main() -> None:
    """Run the command line."""
    app()

"""``tracehook rehearse``: run a job on emulated devices, and fail it if it broke one of NCCL's rules."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from tracehook.commands import summary as summary_command
from tracehook.hook import job, log_begin
from tracehook.log.lines import LogError
from tracehook.rehearsal import emulation, warm

RULES_BROKEN = 86


def rehearse(
    context: typer.Context,
    devices: Annotated[int, typer.Option(min=1, max=64, help="Emulated devices on this machine.")] = 1,
    log: Annotated[
        Path | None,
        typer.Option(help="Switch the hook on, log to this directory, and print a table per rank at the end."),
    ] = None,
    faults: Annotated[
        str,
        typer.Option(help="Faults to play, e.g. 'ncclCommRegister:fail@3=1,ncclAllReduce:slow@*=50ms#rank1'."),
    ] = "",
    warm_start: Annotated[
        bool, typer.Option("--warm", help="Import torch once, and fork the processes of the job from there.")
    ] = False,
) -> None:
    """Run a command without a GPU: tracehook rehearse --devices 4 -- torchrun ... train.py.

    The same PyTorch runs on emulated CUDA devices and an emulated NCCL. Collectives move and compute real data;
    kernels do nothing. Calls that break NCCL's rules are named at the end, and the exit status is then 86; else it is
    the command's. Exit status 2 if it cannot be started so, or the directory of --log cannot be used.
    """
    command = context.args
    if not command:
        raise typer.BadParameter("no command; expected: tracehook rehearse [OPTIONS] -- COMMAND ...")
    unusable = log_begin.why_unusable(log) if log is not None else ""
    if unusable:
        typer.echo(f"tracehook rehearse: --log {unusable}; nothing was started", err=True)
        raise typer.Exit(2)
    with tempfile.TemporaryDirectory(prefix="tracehook-rehearsal-", ignore_cleanup_errors=True) as scratch:
        try:
            emulation.require_cuda_build()
            environment = emulation.environment(devices, Path(scratch), faults)
            with _interpreter(environment, warm_start) as python:
                if log is not None:
                    environment["SYMM_REGISTER_HOOK"] = "1"
                    environment["SYMM_REGISTER_LOG"] = str(log.absolute())
                    job.begin(environment)
                if python is not None:
                    environment["PYTHON_EXEC"] = str(python)  # what torchrun starts its ranks with
                    command = warm.command(command, python, environment.get("PATH"))
                started = time.time()
                status = _run(command, environment)
        except (emulation.NoEmulation, warm.NoWarmStart) as problem:
            typer.echo(f"tracehook rehearse: {problem}", err=True)
            raise typer.Exit(2) from None
        broken = emulation.violations(Path(scratch))
    if log is not None:
        try:
            summary_command.show(log, since=started)
        except LogError as problem:
            typer.echo(f"tracehook rehearse: no table: {problem}", err=True)
    _report(broken)
    raise typer.Exit(RULES_BROKEN if broken else status)


@contextlib.contextmanager
def _interpreter(environment: dict[str, str], warm_start: bool) -> Iterator[Path | None]:
    """Yield the executable of a warm start: that of a server that runs already, or of one for this command."""
    running = environment.get(warm.SOCKET)
    if running or not warm_start:
        yield warm.python_of(Path(running)) if running else None
        return
    server = warm.Warm(environment)
    try:
        environment[warm.SOCKET] = str(server.socket)
        yield server.python
        forked, cold = server.report()
    finally:
        server.close()
    typer.echo(f"warm start: {forked} processes were forked, {sum(cold.values())} started cold{_reasons(cold)}")


def _reasons(cold: dict[str, int]) -> str:
    rows = ", ".join(f"{count} for {reason}" for reason, count in sorted(cold.items()))
    return f" ({rows})" if rows else ""


def _run(command: list[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as problem:
        typer.echo(f"tracehook rehearse: cannot run {command[0]!r}: {problem.strerror}", err=True)
        raise typer.Exit(127) from None

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # Control-C reaches the command too, which decides how to end; we only wait for it. The others reach us alone.
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        previous[number] = signal.signal(number, pass_on)
    try:
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _report(broken: list[dict[str, Any]]) -> None:
    if not broken:
        typer.echo("rehearsal: no rule broken")
        return
    counts = Counter((row.get("rule", "?"), row.get("sentence", "")) for row in broken)
    typer.echo(f"rehearsal: {len(broken)} violations", err=True)
    for (rule, sentence), count in sorted(counts.items()):
        typer.echo(f"  {rule} x{count}: {sentence}", err=True)

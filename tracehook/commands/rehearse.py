"""``tracehook rehearse``: run a job on emulated devices, and fail it if it broke one of NCCL's rules."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from tracehook import settings
from tracehook.audit.live import Follower
from tracehook.audit.stacks import place_of, program_line, told_places
from tracehook.commands import summary as summary_command
from tracehook.commands.printed import refuse
from tracehook.commands.started import cannot_run, command_of, log_of
from tracehook.hook import job
from tracehook.log import stacks
from tracehook.log.directory import find_logs
from tracehook.log.file_name import stacks_of
from tracehook.log.lines import LogError
from tracehook.rehearsal import consequences, emulation, gpus, own_log, unhooked, warm
from tracehook.rehearsal import values as computed
from tracehook.rehearsal.faults import not_played, problem_of
from tracehook.rehearsal.hangs import Standstill, find_agreement, find_hang, is_of

RULES_BROKEN, HANGS, NO_HOOK, TOO_LATE = 86, 87, 88, 124
_MOST_DETAILS = 5  # of the violations of one rule
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL


def rehearse(
    context: typer.Context,
    devices: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Emulated devices on this machine.")] = 1,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Switch the hook on, write logs into this directory, and print a row for each rank at the end.",
        ),
    ] = None,
    faults: Annotated[
        str,
        typer.Option(
            metavar="FAULTS",
            help="Let calls fail or take long, such as ncclCommRegister:fail@3=1 (several, separated by commas).",
        ),
    ] = "",
    nccl: Annotated[
        str, typer.Option(metavar="VERSION", help="Version of NCCL to emulate, such as 2.30.7; default: that of torch.")
    ] = "",
    gpu: Annotated[str, typer.Option(metavar="NAME", help=f"Kind of device to emulate: {', '.join(gpus.NAMES)}.")] = "",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a device, such as 80GiB (default: that of --gpu, or 64GiB).")
    ] = "",
    values: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="Compute tensors of up to this number of elements on the host, such as 1e8 (default 2^24), or off.",
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="End the job after this number of seconds, with exit status 124; 0: never."
        ),
    ] = 0,
    hang_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="End the job if a rank waits in a call for this number of seconds, or sooner if ranks wait for each "
            "other; 0: never.",
        ),
    ] = 600,
    warm_start: Annotated[
        bool, typer.Option("--warm", help="Import torch once, and fork the processes of the job from there.")
    ] = False,
) -> None:
    """Run a command without a GPU.

    Such as: tracehook rehearse --devices 4 -- torchrun ... train.py. The same PyTorch runs on emulated CUDA devices
    and an emulated NCCL. Collectives move and compute real data. The host computes PyTorch's operations. Other
    kernels do nothing.

    Exit status 86: a call broke a rule of NCCL; the command names it at the end.
    Exit status 87: ranks waited for each other, or longer than --hang-timeout;
    the command names them and ends the job.
    Exit status 88: the command ended with 0, but the hook of --log did not start
    in a process that made NCCL communicators.
    Exit status 124: --timeout was over.
    Exit status 2: it could not start the job, or cannot use the directory of --log.
    Else it is the status of the job's command.
    """
    command = command_of(context)
    log = log_of("rehearse", log)
    if gpu and gpus.named(gpu) is None:
        refuse("rehearse", f"--gpu {gpu!r}: expected one of {', '.join(gpus.NAMES)}; nothing was started")
    faults = faults or os.environ.get("TRACEHOOK_EMU_FAULTS", "")
    with tempfile.TemporaryDirectory(prefix="tracehook-rehearsal-", ignore_cleanup_errors=True) as scratch:
        try:
            emulation.require_cuda_build()
            problem = problem_of(faults) if faults else ""
            if problem:
                refuse("rehearse", f"--faults: {problem}; nothing was started")
            environment = emulation.environment(devices, Path(scratch), faults) | _played(nccl, memory, gpu, values)
            with _interpreter(environment, devices, warm_start) as python:
                if log is not None:
                    environment["SYMM_REGISTER_HOOK"] = "1"
                    environment["SYMM_REGISTER_LOG"] = str(log.absolute())
                    job.begin(environment)
                if python is not None:
                    environment["PYTHON_EXEC"] = str(python)  # what torchrun starts its ranks with
                    command = warm.command(command, python, environment.get("PATH"))
                started = time.time()
                status, hang = _run(command, environment, Path(scratch), (timeout, hang_timeout), log)
        except (emulation.NoEmulation, warm.NoWarmStart) as none:
            refuse("rehearse", str(none))
        broken = emulation.violations(Path(scratch))
        not_computed = computed.uncomputed(Path(scratch))
        in_vain = emulation.registered_in_vain(Path(scratch))
        no_hook = unhooked.told(Path(scratch), log) if log is not None else ""
        if broken:
            logs = _logs(log, environment)
            raised = consequences.exceptions(logs) if logs is not None else []
            consequences.mark(broken, [*consequences.failed_windows(Path(scratch)), *raised])
        left = not_played(faults, Path(scratch)) if faults else []
    if log is not None:
        try:
            summary_command.show(log, since=started)
        except LogError as problem:
            typer.echo(f"tracehook rehearse: no table: {problem}", err=True)
    _keep(log, environment, broken, hang)  # after the table, in which it has no row
    unplayed = [f"fault {item} was never played: no such call was made, or not so often" for item in left]
    for line in filter(None, (*unplayed, not_computed, in_vain, no_hook)):
        typer.echo(f"rehearsal: {line}", err=True)
    _report(broken, hang, status)
    if any(map(consequences.is_own, broken)):
        status = RULES_BROKEN
    elif broken and status == RULES_BROKEN:
        status = 1  # a rank's own, which does not know that another one failed first
    elif no_hook and status == 0:
        status = NO_HOOK
    if hang:
        status = HANGS
    if status:
        _tell_next(status, log, _logs(log, environment))
    raise typer.Exit(status)


def _tell_next(status: int, log: Path | None, logs: Path | None) -> None:
    """Say last what to do about a rehearsal that failed."""
    if logs is not None:
        typer.echo(f"rehearsal: exit status {status}; now: tracehook audit {shlex.quote(str(logs))}", err=True)
    elif log is None:
        typer.echo(
            f"rehearsal: exit status {status}; with --log DIR, tracehook audit DIR names the first fault", err=True
        )


def _directory(log: Path | None, environment: dict[str, str]) -> Path | None:
    told = environment.get("SYMM_REGISTER_LOG")
    return log or (Path(told) if told else None)


def _logs(log: Path | None, environment: dict[str, str]) -> Path | None:
    """Return the directory in which there are logs of the ranks."""
    directory = _directory(log, environment)
    return directory if directory is not None and any(directory.glob("*.jsonl*")) else None


def _keep(log: Path | None, environment: dict[str, str], broken: list[dict[str, Any]], hang: Standstill | None) -> None:
    """Write what happened beside the logs of the ranks, if they have logs."""
    directory = _logs(log, environment)
    if directory is None:
        return
    try:
        own_log.write(directory, job.join(environment), broken, hang)
    except OSError as problem:
        typer.echo(f"tracehook rehearse: what happened is not in the log: {problem}", err=True)


@contextlib.contextmanager
def _interpreter(environment: dict[str, str], devices: int, warm_start: bool) -> Iterator[Path | None]:
    """Yield the executable of a warm start: that of a server that runs already, or of one for this command."""
    running = environment.get(warm.SOCKET)
    if running or not warm_start:
        yield warm.python_of(Path(running)) if running else None
        return
    # What torch imports at the first optimizer takes longer than torch itself: once here, if not once in every rank.
    server = warm.Warm(environment, ["torch._dynamo"] if devices > (os.cpu_count() or 1) else [])
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


def _played(nccl: str, memory: str, gpu: str, values: str) -> dict[str, str]:
    """Return the variables of the emulation for these options."""
    out = {}
    if name := gpus.named(gpu):
        out["TRACEHOOK_EMU_GPU"] = name
    if nccl:
        if not re.fullmatch(r"2\.\d{1,2}\.\d{1,2}", nccl):
            raise typer.BadParameter(f"--nccl {nccl!r}: expected a version such as 2.30.7")
        major, minor, patch = map(int, nccl.split("."))
        out["TRACEHOOK_EMU_NCCL_VERSION"] = str(10000 * major + 100 * minor + patch)
    if memory:
        try:
            size = settings.in_bytes_of(memory)
        except settings.SettingError as problem:
            raise typer.BadParameter(f"--memory {memory!r}: {problem}") from None
        if size % (1 << 30):
            raise typer.BadParameter(f"--memory {memory!r}: expected whole GiB, such as 80GiB")
        out["TRACEHOOK_EMU_MEMORY_GB"] = str(size >> 30)
    if values:
        try:
            out[computed.VARIABLE] = str(computed.limit_of(values))
        except computed.UnreadableLimit as problem:
            raise typer.BadParameter(f"--values {problem}") from None
    return out


def _run(
    command: list[str], environment: dict[str, str], scratch: Path, limits: tuple[float, float], log: Path | None
) -> tuple[int, Standstill | None]:
    """Run the command; return its exit status, and the ranks that hung if it was ended for that.

    `limits`: seconds for the job, and for a rank that waits; 0: none.
    """
    longest, limit = limits
    hang: Standstill | None = None
    begin = time.monotonic()
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as problem:
        cannot_run("rehearse", command[0], problem)

    logs = _directory(log, environment)
    follower = Follower(logs) if logs is not None and limit else None
    look_at = begin + limit  # before that nobody can have waited so long
    is_told = False  # to end: who waits then waits for ranks that were ended first

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal is_told
        is_told = True
        process.send_signal(number)

    # Control-C reaches the command too, which decides how to end; we only wait for it. The others reach us alone.
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        previous[number] = signal.signal(number, pass_on)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_LOOK_SECONDS if limit or longest else None)
                break
            hang = find_hang(scratch, limit) if limit and not is_told else None
            if follower is not None and not (hang or is_told) and time.monotonic() >= look_at:
                hang = _agreement(follower, limit)
                look_at += limit / 10 if follower.is_whole else 0
            if hang:
                _tell_places(_logs(log, environment), hang, scratch)
                status = _end(process, hang.pids, scratch)
                break
            if longest and time.monotonic() - begin > longest:
                typer.echo(f"rehearsal: the job ran longer than --timeout {longest:g}, and was ended", err=True)
                _end(process, (), scratch)
                status = TOO_LATE
                break
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return (status if status >= 0 else 128 - status), hang


def _agreement(follower: Follower, limit: float) -> Standstill | None:
    with contextlib.suppress(OSError):  # the summary names logs that nobody can read
        follower.look(_LOOK_SECONDS)
        return find_agreement(follower, limit)
    return None


def _tell_places(logs: Path | None, hang: Standstill, scratch: Path) -> None:
    """Have the ranks that hang write their stacks, before they are ended; say where those of the first call are."""
    living = {pid for pid in hang.pids if is_of(scratch, pid)}
    if logs is None or not living:
        return
    with contextlib.suppress(LogError, OSError):
        told = stacks.ask(one for one in find_logs(logs, scratch).logs if one.begin.get("pid") in living)
        lines = {one.rank: program_line(stacks_of(one.path)) for one in told}
        found = [place_of(rank, line) for rank in hang.calls[0].ranks if (line := lines.get(rank)) is not None]
        for said in told_places(found):
            typer.echo(f"rehearsal: {said}", err=True)


def _end(process: subprocess.Popen[bytes], ranks: Iterable[int], scratch: Path) -> int:
    """End a command whose ranks hang. A rank inside NCCL does not hear SIGTERM, and its launcher waits for it."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    for pid in ranks:
        if is_of(scratch, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_GRACE_SECONDS)
    process.kill()
    return process.wait()


def _report(broken: list[dict[str, Any]], hang: Standstill | None, status: int) -> None:
    for line in hang.lines if hang else ():
        typer.echo(f"rehearsal: hang: {line}", err=True)
    if not broken:
        if not hang:
            typer.echo(f"rehearsal: no rule broken{', but the command failed' if status else ''}")
        return
    own = [row for row in broken if consequences.is_own(row)]
    followed = [row for row in broken if not consequences.is_own(row)]
    typer.echo(f"rehearsal: {len(own)} violations", err=True)
    _list(own)
    if followed:
        typer.echo(f"rehearsal: {len(followed)} more, consequences of failures that came before:", err=True)
        _list(followed)


def _list(broken: list[dict[str, Any]]) -> None:
    counts = Counter((row.get("rule", "?"), row.get("sentence", "")) for row in broken)
    for (rule, sentence), count in sorted(counts.items()):
        typer.echo(f"  {rule} x{count}: {sentence}", err=True)
        same = [row for row in broken if row.get("rule", "?") == rule and row.get("details")]
        for row in same[:_MOST_DETAILS]:
            rank = row.get("rank", -1)
            who = f"rank {rank} of its communicator, " if isinstance(rank, int) and rank >= 0 else ""
            cause = f" (a consequence of: {row['consequence_of']})" if row.get("consequence_of") else ""
            typer.echo(f"    {who}pid {row.get('pid')}: {row['details']}{cause}", err=True)
        if len(same) > _MOST_DETAILS:
            typer.echo(f"    and {len(same) - _MOST_DETAILS} more", err=True)

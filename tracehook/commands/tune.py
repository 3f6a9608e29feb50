"""``tracehook tune``: times calls in plain, in symmetric and on registered memory, for the policy ``measured``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Shown
from rich.text import Text

from tracehook.commands.printed import console_for, refuse
from tracehook.log.text import in_bytes, number_in
from tracehook.nccl.effect import PAYING, Threshold
from tracehook.settings import SettingError, from_environment, in_bytes_of
from tracehook.tuning.table import MARGIN, RegisteredPoint, Row, Table
from tracehook.tuning.thresholds import thresholds
from tracehook.views.output import replacing
from tracehook.views.tuning_page import make_tuning_page

if TYPE_CHECKING:
    from tracehook.tuning.sweep import Plan

_OPERATIONS = "all_reduce,all_gather,reduce_scatter"
_REGISTERED = ",".join(PAYING)
_NO_GPU = "PyTorch sees no GPU on this machine: run it where the job will run, with a PyTorch that has CUDA"
_INTERRUPTED = 130  # as a shell has it
_GRACE_SECONDS = 5.0


def tune(
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of processes to start; default: one for each GPU. Not under torchrun."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Table to write, as JSON. A page with pictures (.html) stands beside it.",
        ),
    ] = Path("tuned.json"),
    groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE",
            help="More groups to measure, such as tp=4: groups of 4 neighbours, all at work at once (repeatable).",
        ),
    ] = None,
    operations: Annotated[
        str,
        typer.Option(
            metavar="NAMES", show_default=_OPERATIONS.replace(",", ", "), help="Collectives, separated by commas."
        ),
    ] = _OPERATIONS,
    registered: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            show_default=_REGISTERED.replace(",", ", "),
            help="Calls to measure on registered memory, too, separated by commas. They need SYMM_REGISTER_MEMORY=vmm.",
        ),
    ] = _REGISTERED,
    dtypes: Annotated[
        str, typer.Option(metavar="NAMES", help="torch's names of the elements' types, separated by commas.")
    ] = "bfloat16",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="graph (replays of CUDA graphs), eager, or both.")
    ] = "graph,eager",
    smallest: Annotated[
        str, typer.Option(metavar="SIZE", help="Smallest size of the larger buffer, such as 1KiB.")
    ] = "1KiB",
    largest: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest size of the larger buffer, such as 1GiB.")
    ] = "1GiB",
    samples: Annotated[
        int,
        typer.Option(
            min=3, metavar="N", help="Repetitions of each size; more if it is undecided by then which memory is faster."
        ),
    ] = 60,
    budget: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Seconds after which no further pass over undecided sizes begins."),
    ] = 40,
    margin: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.5,
            metavar="FRACTION",
            help="Choose symmetric memory if it is faster by more than this fraction.",
        ),
    ] = MARGIN,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Seconds that a rank may stay behind the others.")
    ] = 30,
) -> None:
    """Find out where symmetric memory is faster on this machine.

    It writes a table for SYMM_REGISTER_POLICY=measured. Alone it starts one process for each GPU. Under torchrun
    (torchrun ... -m tracehook tune) it is one of the ranks. Exit status 1 if ranks failed or have wrong results, 2
    if it cannot start in this way, 130 after Control-C.
    """
    lists = {"operations": operations, "registered": registered, "dtypes": dtypes, "mode": mode}
    plan = _plan(lists, (smallest, largest), groups or []) | {"samples": samples, "budget": budget, "margin": margin}
    if os.environ.get("RANK", "0") == "0":
        _require_writable(out)
    if "RANK" not in os.environ:
        _start(ranks, plan["groups"])
    if "WORLD_SIZE" not in os.environ:
        _refuse("RANK is set, but WORLD_SIZE is not: unset RANK, or use torchrun -m tracehook tune")
    if ranks is not None and ranks != int(os.environ["WORLD_SIZE"]):
        _refuse(f"--ranks {ranks}, but the launcher started {os.environ['WORLD_SIZE']}: leave --ranks out")
    _measure(plan, out, timeout)


def _plan(lists: dict[str, str], span: tuple[str, str], groups: list[str]) -> dict[str, Any]:
    """Return the fields of the plan that are texts on the command line; without the group of all ranks."""
    chosen: dict[str, Any] = {name: list(dict.fromkeys(text.split(","))) for name, text in lists.items()}
    known = {
        "operations": _OPERATIONS.split(","),
        "registered": _REGISTERED.split(","),
        "dtypes": ["bfloat16", "float16", "float32", "float64"],
        "mode": ["graph", "eager"],
    }
    for name, values in chosen.items():
        odd = [value for value in values if value not in known[name]]
        if odd:
            _refuse(f"--{name} {odd[0]!r}: expected {', '.join(known[name])}, separated by commas")
    sizes = []
    for option, text in zip(("smallest", "largest"), span, strict=True):
        try:
            sizes.append(in_bytes_of(text))
        except SettingError as problem:
            _refuse(f"--{option} {text!r}: {problem}")
    powers = [1 << bit for bit in range(64) if sizes[0] <= 1 << bit <= sizes[1]]
    if not powers:
        _refuse(f"no power of two lies between --smallest {span[0]} and --largest {span[1]}")
    named = {}
    for text in groups:
        name, _, count = text.partition("=")
        named[text] = number_in(count) or 0
        if not name or named[text] < 2:
            _refuse(f"--groups {text!r}: expected a name and a number of ranks above 1, such as tp=4")
    graphs = [each == "graph" for each in chosen.pop("mode")]
    return chosen | {"graphs": graphs, "sizes": powers, "groups": named}


class _WritableError(Exception):
    """Leaves a file as it was."""


def _require_writable(out: Path) -> None:
    """Refuse before the measurement what could not be written after it."""
    if out.suffix == ".html":
        _refuse(f"--out {out}: the page takes that name, so give the table another one, such as tuned.json")
    try:
        for suffix in (out.suffix, ".html"):
            with contextlib.suppress(_WritableError), replacing(out.with_suffix(suffix) if out.name else out):
                raise _WritableError
    except OSError as problem:
        _refuse(f"--out {out}: {problem.filename}: {problem.strerror}: name a file that can be written")


def _require_groups(groups: dict[str, int], ranks: int) -> None:
    if ranks < 2:
        _refuse("one rank has nobody to exchange with: run it with two GPUs or more")
    for text, count in groups.items():
        if ranks % count:
            _refuse(f"--groups {text}: {ranks} ranks are no multiple of {count}")


def _start(ranks: int | None, groups: dict[str, int]) -> NoReturn:
    """Start the ranks under torchrun, with the same arguments, and end with their exit status."""
    import torch

    devices = torch.cuda.device_count()
    if not devices:
        _refuse(_NO_GPU)
    count = ranks or devices
    if count > devices:
        _refuse(f"{count} ranks, but this machine has {devices} GPUs: give --ranks, or use torchrun -m tracehook tune")
    _require_groups(groups, count)
    launcher = [sys.executable, "-m", "tracehook.tuning.launcher", "--standalone", f"--nproc-per-node={count}"]
    own = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_POLICY": "isolated", "OMP_NUM_THREADS": "1"}
    environment = os.environ | own
    process = subprocess.Popen([*launcher, "-m", "tracehook", *sys.argv[1:]], env=environment)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    is_interrupted = False
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:
            is_interrupted = True
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(_GRACE_SECONDS)  # from a terminal the launcher has got it too, and ends the ranks
            process.terminate()
    raise typer.Exit(_INTERRUPTED if is_interrupted else 1 if status else 0)


def _measure(chosen: dict[str, Any], out: Path, timeout: float) -> None:
    import torch
    import torch.distributed as dist

    import tracehook
    from tracehook.errors import RegistrationError
    from tracehook.tuning.sweep import Plan, sweep
    from tracehook.tuning.tuner_run import TunerRun

    device, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device >= devices:
        _refuse(f"rank {os.environ['RANK']} has no GPU: this machine has {devices} GPUs" if devices else _NO_GPU)
    tracehook.enable()  # before CUDA is up, or segments would not come from where the settings say
    torch.cuda.set_device(device)
    if from_environment()[0].memory == "vmm":
        # Before there is a communicator: in a graph NCCL would register what we compare as unregistered.
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    if not dist.is_initialized():
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    run = TunerRun(timeout)
    signal.signal(signal.SIGTERM, lambda *_: _ended(run.doing))
    _require_groups(chosen["groups"], run.ranks)
    try:
        registers = all(run.tell(_registers_at_calls(tracehook.status())))
    except RegistrationError as problem:
        _fail(run.rank, problem.text)
    chosen["groups"] = {"world": run.ranks} | chosen["groups"]
    plan = Plan(**chosen | ({} if registers else {"registered": []}))
    try:
        columns = TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(), TextColumn("{task.description}")
        with Progress(BarColumn(), *columns, console=Console(stderr=True), disable=run.rank != 0) as bar:
            task = bar.add_task("", total=1.0)
            table = sweep(plan, run, lambda doing, part: bar.update(task, completed=part, description=doing))
    except Exception as problem:
        text = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        run.fail(text)  # also what the ranks raise together: then nobody is left to hear it
        if isinstance(problem, RegistrationError):
            _fail(run.rank, problem.text)
        _fail(run.rank, f"{run.doing}: {text}")
    if run.rank == 0:
        _write(table, out, plan)
    dist.destroy_process_group()


def _registers_at_calls(status: Mapping[str, Any]) -> bool:
    local = from_environment()[0].local
    return status["state"] == "on" and status["memory"]["source"] == "vmm" and local in ("auto", "own")


def _write(table: Table, out: Path, plan: Plan) -> None:
    for shown in tables(table):
        console_for(shown).print(shown)
    files = {out: table.as_json()}
    try:
        files[out.with_suffix(".html")] = make_tuning_page(table)
    except ModuleNotFoundError as problem:
        typer.echo(f"tracehook tune: no page with pictures: {problem}: pip install 'tracehook[audit]'", err=True)
    try:
        for path, text in files.items():
            with replacing(path) as file:
                file.write(text.encode())
    except OSError as problem:
        _refuse(f"{problem.filename or path}: {problem.strerror}; the table above was not written")
    faster = sum(point.prefers_symmetric(table.margin) for points in table.rows.values() for point in points)
    count = sum(map(len, table.rows.values()))
    typer.echo(
        f"{', '.join(map(str, files))} ({table.digest}): symmetric memory is faster at {faster} of {count} sizes."
    )
    if table.registered:
        typer.echo(sentence_on_registered(table))
    left_out = plan.count - count
    if left_out:
        typer.echo(f"{left_out} sizes were left out, because the device has too little free memory.")
    typer.echo(f"Use it: SYMM_REGISTER_POLICY=measured SYMM_REGISTER_TUNED={out.absolute()}")


def _refuse(text: str) -> NoReturn:
    refuse("tune", text)


def _ended(doing: str) -> NoReturn:
    """The launcher ends all ranks as soon as one failed."""
    _fail(int(os.environ["RANK"]), f"{doing}: the launcher ended this rank: some other rank failed before")


def _fail(rank: int, text: str) -> NoReturn:
    """End at once: collectives that hang must not be waited for."""
    typer.echo(f"tracehook tune: rank {rank} ends: {text}", err=True)
    sys.stdout.flush()
    os._exit(1)


_NEVER = Threshold(None, None)


def tables(table: Table) -> Iterator[Shown]:
    """Yield one table for each collective, type and group: sizes below each other, ways of calling side by side."""
    for kind in sorted({kind._replace(graph=False) for kind in table.rows}):
        yield _shown(kind, table.rows, "symmetric", lambda point, _: point.prefers_symmetric(table.margin))
    limits = thresholds(table)
    for kind in sorted({kind._replace(graph=False) for kind in table.registered}):
        limit = limits.get(kind.operation, _NEVER)
        yield _shown(kind, table.registered, "registered", partial(_is_registered, limit))


def sentence_on_registered(table: Table) -> str:
    """Say which calls run on registered memory with this table."""
    told = ", ".join(f"{call} {limit.in_words()}" for call, limit in thresholds(table).items())
    return f"Calls run on registered memory: {told}."


def _shown(kind: Row, table: Mapping[Row, Sequence[Any]], other: str, is_chosen: Callable[[Any, bool], bool]) -> Shown:
    hosts = f" on {kind.hosts} hosts" if kind.hosts > 1 else ""
    about = ", registered" if other == "registered" else ""
    title = f"{kind.operation}, {kind.dtype}, {kind.ranks} ranks{hosts}{about}: microseconds; * is chosen"
    shown = Shown(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("bytes", justify="right", no_wrap=True)
    ways = [kind._replace(graph=graph) for graph in (True, False) if kind._replace(graph=graph) in table]
    for way in ways:
        name = "graph" if way.graph else "eager"
        for column in (f"{name}: plain", other, f"plain/{other}"):
            shown.add_column(column, justify="right", no_wrap=True)
    rows = [{point.nbytes: point for point in table[way]} for way in ways]
    for nbytes in sorted(set().union(*rows)):
        cells: list[Text] = []
        for way, row in zip(ways, rows, strict=True):
            point = row.get(nbytes)
            if point is None:
                cells += [Text("-")] * 3
                continue
            chosen = is_chosen(point, way.graph)
            taken = getattr(point, f"{other}_us")
            cells += [_time(point.plain_us, not chosen), _time(taken, chosen), Text(f"{point.gain:.2f}")]
        shown.add_row(in_bytes(nbytes), *cells)
    return shown


def _is_registered(limit: Threshold, point: RegisteredPoint, graph: bool) -> bool:
    least = limit.captured if graph else limit.eager
    return least is not None and point.nbytes >= least


def _time(us: float, is_chosen: bool) -> Text:
    return Text(f"{us:.1f}{'*' if is_chosen else ' '}", style="bold" if is_chosen else "")

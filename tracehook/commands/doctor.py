"""``tracehook doctor``: what is installed, what was chosen and why, and whether the hook fires."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import tracehook
from tracehook import known, settings, versions
from tracehook.commands.logs_options import AsJson
from tracehook.commands.printed import console_for
from tracehook.hook import known_bugs, library, nccl_library, registrants
from tracehook.log.tables import MEMORIES
from tracehook.nccl import effect
from tracehook.rehearsal import emulation
from tracehook.tuning import gain

_WITHOUT_TORCH = "not installed: tracehook reads logs here; to follow a job, install torch 2.11 or later beside it"


def doctor(
    as_json: AsJson = False,
    job: Annotated[
        bool, typer.Option("--job", help="Also name known bugs that bear on a job started here, or may.")
    ] = False,
) -> None:
    """Show versions and settings, and test the hook.

    It allocates and frees one segment, and expects two events. With two GPUs or more it also times a call on
    registered memory, in two processes, and prints the gain. With --job it names known bugs of NCCL, PyTorch and
    others that bear on a job with this environment. Exit status 0 if the hook works here, else 1 (the row
    self-test says why).
    """
    # Before the test, which begins a job if there is a log, and leaves its id in the environment.
    changed = {variable: os.environ[variable] for variable, _, _ in settings.table() if variable in os.environ}
    found = _versions()
    works, result = _self_test()
    found += _state()
    if works:
        found.append(("registration", _gain()))
    bugs = _bugs() if job else []
    if as_json:
        facts = {name: text for name, text in found if not name.startswith(" ")}
        remarks = {name.strip(): text for name, text in found if name.startswith(" ")}
        out = {"version": 1, "works": works, "self_test": result, "found": facts, "remarks": remarks}
        out |= {"settings": changed} | ({"bugs": [_bug_as_json(found) for found in bugs]} if job else {})
        typer.echo(json.dumps(out, indent=1))
    else:
        _show([*found, *_bug_rows(bugs), ("self-test", result)], changed)
    raise typer.Exit(0 if works else 1)


def _show(rows: list[tuple[str, str]], changed: dict[str, str]) -> None:
    table = Table(show_header=False, title="tracehook doctor", title_justify="left")
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("found", overflow="fold")
    defaults = {variable: default for variable, default, _ in settings.table()}
    for name, text in (*rows, *((name, f"{value!r} (default: {defaults[name]})") for name, value in changed.items())):
        table.add_row(name, Text(text))
    console_for(table).print(table)


def _versions() -> list[tuple[str, str]]:
    mine = ("tracehook", f"{tracehook.__version__}, Python {platform.python_version()}, {sys.platform}")
    try:
        import torch

        library.directory()
    except ImportError as problem:
        missing = "torch" if problem.name == "torch" else "native part"
        return [mine, (missing, _WITHOUT_TORCH if problem.name == "torch" else str(problem))]
    have = ", ".join(library.available()) or "none"
    version = str(torch.__version__)
    chosen = library.path_for(version)
    why = "matches the running torch" if chosen else f"none of them fits torch {library.minor_of(version)}"
    try:
        emulated = str(emulation.directory())
    except emulation.NoEmulation as problem:
        emulated = str(problem)
    return [
        mine,
        ("torch", f"{version}, CUDA {torch.version.cuda or 'none: a build without CUDA'}"),
        ("hook libraries", f"{have}; {chosen.name if chosen else 'none chosen'}: {why}"),
        ("rehearsal", emulated),
        ("registers", _who_registers(version) if torch.version.cuda else "nobody: this torch has no NCCL"),
    ]


def _who_registers(torch_version: str) -> str:
    mode = settings.from_environment()[0].local
    if mode in ("auto", "all") and versions.group_of(torch_version) == "nccl2":
        return "torch's group nccl2 by itself, which is recorded"
    if mode in ("auto", "all") and registrants.torch_hook_is_on():
        return "torch's own hook, which is recorded"
    return {
        "auto": "tracehook, where NCCL can use it",
        "all": "tracehook, every segment",
        "own": "tracehook, always",
        "observe": "not tracehook; what others do is recorded",
        "off": "not tracehook; what others do is not recorded",
    }[mode]


def _memory(nccl: int) -> str:
    """Say where segments come from, and what NCCL can do with a registration of them inside a host."""
    source = settings.from_environment()[0].memory
    kind = effect.SHAREABLE if source == "vmm" else effect.CUDA_MALLOC
    rule = effect.row_of(effect.Facts(kind, True, nccl, os.environ))
    remedy = f": {rule.remedy}" if rule.remedy else ""
    return f"{source}; inside a host a registration has {_EFFECTS[rule.effect]} ({rule.text}{remedy})"


_EFFECTS = {
    effect.NONE: "no effect",
    effect.HOST: "an effect",
    effect.NETWORK: "an effect",
    effect.UNKNOWN: "an unknown effect",
}


def _state() -> list[tuple[str, str]]:
    status = tracehook.status()
    nccl = status["nccl"]
    rows = [
        ("NCCL", versions.nccl_name(nccl) if nccl else "not loaded"),
        ("state", status["state"]),
        ("memory", _memory(nccl)),
    ]
    for file in nccl_library.loaded():
        if maker := nccl_library.pretender(file):
            text = (
                f"{file} is the NCCL of {maker}: it accepts registrations and windows, and makes none. What the "
                "log calls registered is not; start the job without this library to have it registered"
            )
            rows.append(("  registers nothing", text))
    rows.extend((f"  {name}", advice) for name, advice in status["reasons"].items())
    return rows


def _bugs() -> list[known.Bearing]:
    """Return the bugs that bear on a job with this environment, or may; those that are not dangerous last."""
    try:
        import torch

        version = str(torch.__version__)
    except ImportError:
        version = ""
    config = settings.from_environment()[0]
    return known.bearing_on(known_bugs.facts(config, version, tracehook.status()["nccl"]))


def _bug_rows(bugs: list[known.Bearing]) -> list[tuple[str, str]]:
    """Say of dangerous bugs what happens, under which conditions that are not known yet, and what helps."""
    rows = []
    for found in bugs:
        if found.bug.is_dangerous and (found.bug.is_of_versions or found.if_also):
            when = f"If {' and '.join(found.if_also)}: " if found.if_also else ""
            rows.append((f"  {found.bug.name}", f"{when}{found.bug.what} {found.bug.remedy}"))
    certain = sum(not found.if_also for found in bugs if found.bug.is_dangerous and found.bug.is_of_versions)
    return [("known bugs", f"{certain} bear on this job, {len(rows) - certain} may"), *rows] if rows else []


def _bug_as_json(found: known.Bearing) -> dict[str, Any]:
    bug = found.bug
    told = {"bug": bug.name, "effect": bug.effect, "because": list(found.because), "if": list(found.if_also)}
    return told | {"what": bug.what, "remedy": bug.remedy, "source": bug.source}


def _gain() -> str:
    """Say what a registration gains here."""
    import torch

    if emulation.is_emulated():
        return "not measured: the devices are emulated"
    if torch.cuda.device_count() < 2:
        return "not measured: one device has nobody to exchange with"
    return gain.measured()


def _self_test() -> tuple[bool, str]:
    try:
        import torch

        library.directory()
    except ImportError:
        return False, "not run: this installation can only read logs"
    tracehook.enable()
    if torch.version.cuda is None:
        return False, "not run: this torch is a build without CUDA"
    if not torch.cuda.is_available():
        return False, "not run: torch sees no CUDA device (try: tracehook rehearse -- tracehook doctor)"
    try:
        torch.cuda.init()
    except RuntimeError as problem:
        return False, f"not run: CUDA does not come up: {problem}"
    from tracehook import _core

    if not _core.attached():
        return False, "failed: not attached to the allocator"
    allocator: dict[str, Any] = _core.describe_allocator()
    before = _core.totals().segments
    # A pool of its own, so that the test makes exactly one segment and gives back exactly that one.
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    born = _core.totals().segments - before
    segment = _core.segment_at(tensor.data_ptr())
    kind = MEMORIES[segment.memory] if segment is not None else "unknown"
    del tensor, pool
    torch.cuda.empty_cache()
    died = before + born - _core.totals().segments
    counts = f"{born} segment seen allocated, {died} seen freed (allocator {allocator['name']}, memory {kind})"
    works = born == 1 and died >= 1
    return works, counts if works else f"failed: {counts}; expected 1 and 1"

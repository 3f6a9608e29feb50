"""``tracehook rotate``: the processes of running jobs begin new parts of their logs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.logs_options import LogDirectory, plain, readable
from tracehook.log.file_name import part_of, stem_of
from tracehook.log.folders import folders_in
from tracehook.log.parts import REQUEST
from tracehook.log.text import many

LEFT = 1  # exit status: a process began no new part
_LOOK = 0.2  # seconds
_MOST_NAMED = 4


def rotate(
    directory: LogDirectory,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Seconds to wait for the processes.")] = 10.0,
) -> None:
    """Ask every process that writes a log into DIR to begin a new part, so that you can move the older parts away.

    It prints the name of each new part.
    Exit status 1 if a process whose log has no end began no new part: somebody
    killed it, or it has SYMM_REGISTER_LOG_LIMIT=0.
    Exit status 2 if the directory holds no log.
    """
    with readable("rotate"):
        before = _open_logs(directory)
        try:
            for folder in {directory, *(path.parent for path in before)}:
                (folder / REQUEST).touch()
        except OSError as problem:
            typer.echo(f"tracehook rotate: {plain(str(problem.filename))}: {problem.strerror}", err=True)
            raise typer.Exit(2) from None
        deadline = time.monotonic() + wait
        while (waiting := _behind(directory, before)) and time.monotonic() < deadline:
            time.sleep(_LOOK)
    now = _newest(directory)
    for stem in sorted(before.keys() - waiting):
        typer.echo(plain(str(now[stem][1])))
    if waiting:
        named = ", ".join(path.name for path in sorted(waiting)[:_MOST_NAMED]) + (
            ", ..." if len(waiting) > _MOST_NAMED else ""
        )
        behind = many(len(waiting), "process")
        typer.echo(f"tracehook rotate: {behind} began no new part within {wait:g} s: {plain(named, 400)}", err=True)
        raise typer.Exit(LEFT)


def _open_logs(directory: Path) -> dict[Path, int]:
    """Return the newest part of each log that has no end, by folder and stem."""
    import tempfile

    from tracehook.log.directory import find_logs

    with tempfile.TemporaryDirectory(prefix="tracehook-rotate-") as scratch:
        logs = find_logs(directory, Path(scratch)).logs
    parts = [log.parts[-1].path for log in logs if log.parts and not log.ended]
    return {_stem(path): part_of(path.name) for path in parts}


def _stem(path: Path) -> Path:
    return path.parent / stem_of(path.name)


def _behind(directory: Path, before: dict[Path, int]) -> set[Path]:
    now = _newest(directory)
    return {stem for stem, number in before.items() if stem not in now or now[stem][0] <= number}


def _newest(directory: Path) -> dict[Path, tuple[int, Path]]:
    newest: dict[Path, tuple[int, Path]] = {}
    for folder in folders_in(directory):
        for file in folder.glob("*.jsonl"):
            newest[_stem(file)] = max(newest.get(_stem(file), (0, file)), (part_of(file.name), file))
    return newest

"""The cells of the tables of ``tracehook watch``: what they say of a process, and of several together."""

from __future__ import annotations

from collections.abc import Collection

from tracehook.audit.live_process import Process, State
from tracehook.log.text import in_bytes

COLUMNS = ("segs", "bytes", "comms", "held", "ev/s", "reg/s", "warn", "ring", "dropped")  # of numbers
_STYLES = {State.STUCK: "red", State.SILENT: "red", State.NO_END: "red", State.QUIET: "yellow", State.ENDED: "dim"}
_WITH_SECONDS = (State.QUIET, State.STUCK, State.SILENT)


def numbers(processes: Collection[Process]) -> list[str]:
    """Return the sums of the columns."""
    segments, size, communicators, held, alerts, waiting, dropped = map(
        sum, zip(*(process.numbers for process in processes), strict=True)
    )
    rates = [rate for process in processes if (rate := process.rates()) is not None]
    return [
        str(segments),
        in_bytes(size),
        str(communicators),
        str(held),
        *((f"{sum(column):.1f}" for column in zip(*rates, strict=True)) if rates else ("-", "-")),
        str(alerts),
        str(waiting),
        str(dropped),
    ]


def row_of(process: Process, now: float) -> list[str]:
    """Return the cells of one process: rank, pid, state and the numbers."""
    rank = "-" if process.summary.rank is None else str(process.summary.rank)
    return [rank, str(process.summary.pid), state_cell(*process.state(now)), *numbers([process])]


def state_cell(state: State, seconds: float) -> str:
    """Say a state, and of those that may be bad since when."""
    return f"{state} {told_seconds(seconds)}" if state in _WITH_SECONDS else str(state)


def style(state: State, has_alerts: bool) -> str:
    """Return how a row looks."""
    return "bold red" if has_alerts else _STYLES.get(state, "")


def told_seconds(seconds: float) -> str:
    """Return a time in the largest unit of which there are two or more."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"

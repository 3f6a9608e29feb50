"""Every environment variable of tracehook, once: name, default, meaning and how it is read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tracehook.log.bound import LEAST_LIMIT
from tracehook.log.folders import of_this_host
from tracehook.log.tables import MODES

JOB = "SYMM_REGISTER_JOB"  # also what a process leaves for its children (hook/job.py)


class SettingError(ValueError):
    """A variable holds what it cannot mean. The text says what was seen, what was expected and what is used instead."""


def _flag(text: str) -> bool:
    if text in ("0", "1"):
        return text == "1"
    raise SettingError("expected 0 or 1")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise SettingError("expected a number of seconds") from None
    if not 0 < seconds < 1e6:
        raise SettingError("expected seconds above 0 and below a million")
    return seconds


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text in choices:
            return text
        raise SettingError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SettingError("expected names of policies, separated by commas")
    return names


INTEGRATIONS = ("sglang", "vllm", "megatron")


def _integrations(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ("auto",):
        return INTEGRATIONS
    if not names or not set(names) <= set(INTEGRATIONS):
        raise SettingError(f"expected auto, or names of {', '.join(INTEGRATIONS)}, separated by commas")
    return names


_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def in_bytes_of(text: str) -> int:
    """Read a size such as ``8GiB``.

    Raises:
        SettingError: it is none.

    """
    digits = text.rstrip("KMGTkmgtiIbB")
    unit = text[len(digits) :].upper()
    if not digits.strip().isascii() or not digits.strip().isdigit() or unit not in _UNITS or len(digits) > 18:
        raise SettingError("expected bytes above 0, such as 8589934592 or 8GiB")
    size = int(digits) * _UNITS[unit]
    if not 0 < size < 2**63:
        raise SettingError("expected bytes above 0, such as 8589934592 or 8GiB")
    return size


ALL, NO_GRAPH_POOLS, NO_PAUSABLE, OWN_ALLOCATORS = "all", "no-graph-pools", "no-pausable", "own-allocators"
FROM = "from-"


def _segments(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SettingError(f"expected {ALL}, {NO_GRAPH_POOLS}, {NO_PAUSABLE}, {FROM}SIZE or {OWN_ALLOCATORS}")
    for name in names:
        if name.startswith(FROM):
            in_bytes_of(name.removeprefix(FROM))
        elif name.rstrip("KMGTkmgtiIbB").isdigit():
            raise SettingError(f"expected {FROM}{name} for segments of at least that size")
    return names


def _log_limit(text: str) -> int | None:
    if text == "0":
        return None
    size = in_bytes_of(text)
    if size < LEAST_LIMIT:
        raise SettingError(f"expected at least {LEAST_LIMIT >> 20}MiB, or 0 for no limit")
    return size


def _path(text: str) -> Path:
    try:
        # Absolute, so that it stays the same folder when the program changes its own.
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise SettingError("expected a path; there is no such home") from None
    except OSError:
        raise SettingError("expected an absolute path, because the current folder is gone") from None


def _log_path(text: str) -> Path:
    return of_this_host(_path(text))


def _setting(
    variable: str, default: Any, read: Callable[[str], Any], meaning: str, shown: str = "", is_shared: bool = False
) -> Any:
    """Describe a setting. `is_shared`: the ranks of a job must have it alike."""
    return field(
        default=default,
        metadata={"variable": variable, "read": read, "meaning": meaning, "shown": shown, "is_shared": is_shared},
    )


@dataclass(frozen=True)
class Settings:
    """What the environment said when the process started. Frozen: read once, by :func:`from_environment`."""

    hook: bool = _setting(
        "SYMM_REGISTER_HOOK", False, _flag, "1: start at `import torch`, with no change to the script", shown="0"
    )
    log: Path | None = _setting(
        "SYMM_REGISTER_LOG",
        None,
        _log_path,
        "directory for one JSON-lines log (and ring file) per process; `%h` in it stands for the host's name; unset: "
        "tracehook only prints warnings on stderr",
    )
    log_limit: int | None = _setting(
        "SYMM_REGISTER_LOG_LIMIT",
        256 << 20,
        _log_limit,
        "most bytes of a process's log and ring, such as 1GiB: tracehook then removes the oldest lines; 0: no limit",
        shown="256MiB",
    )
    metrics: Path | None = _setting(
        "SYMM_REGISTER_METRICS",
        None,
        _path,
        "directory for one file of metrics per process, for Prometheus (docs/operations.md#metrics); unset: none",
    )
    job: str | None = _setting(
        JOB,
        None,
        str,
        "id of the job in the logs and their names, the same on all ranks; unset: the id of torchrun (--rdzv-id) or "
        "SLURM, or else an id that the first process of the job makes and passes to its children in this variable",
    )
    local: str = _setting(
        "SYMM_REGISTER_LOCAL",
        "auto",
        _one_of(*MODES),
        "who registers segments: auto (tracehook, but if torch registers them itself, tracehook only records that), "
        "own (always tracehook), observe (never tracehook, which only records what others register), off (tracehook "
        "neither registers nor records) or all (as auto, and every segment, also where NCCL can use no registration, "
        "or may hang on it between hosts)",
        is_shared=True,
    )
    memory: str = _setting(
        "SYMM_REGISTER_MEMORY",
        "torch",
        _one_of("torch", "vmm"),
        "where segments come from, the same on all ranks: torch (cudaMalloc, whose memory NCCL cannot map into other "
        "processes) or vmm (the driver's virtual memory, which NCCL can use; docs/registration.md)",
        is_shared=True,
    )
    segments: tuple[str, ...] = _setting(
        "SYMM_REGISTER_SEGMENTS",
        (ALL,),
        _segments,
        "which segments tracehook registers, the same on all ranks, separated by commas: all, no-graph-pools, "
        "no-pausable, from-SIZE (such as from-20MiB), own-allocators (also pools with an allocator of their own), or "
        "names of rules in installed packages (docs/registration.md)",
        is_shared=True,
    )
    check: bool = _setting(
        "SYMM_REGISTER_CHECK",
        False,
        _flag,
        "1: after each new communicator, compare tracehook's list of segments with the allocator's own snapshot",
    )
    policy: tuple[str, ...] = _setting(
        "SYMM_REGISTER_POLICY",
        ("isolated",),
        _names,
        "names of pool policies, separated by commas: the first answer wins (docs/policies.md)",
        is_shared=True,
    )
    tuned: Path | None = _setting(
        "SYMM_REGISTER_TUNED",
        None,
        _path,
        "tuning table of `tracehook tune` for the policy measured, the same on all ranks; unset: none",
    )
    timeout: float = _setting(
        "SYMM_REGISTER_TIMEOUT",
        60.0,
        _seconds,
        "seconds after which a rank that waits for others in a comparison says which are missing; it waits on until "
        "the time-out of the group. Two waits end after them: peers (docs/ipc.md), and a window of the program, if "
        "another thread holds the interpreter",
    )
    guard: str = _setting(
        "SYMM_REGISTER_GUARD",
        "on",
        _one_of("on", "watch", "off"),
        "what tracehook may do where ranks differ: on (refuse the call or window, and end a group that cannot go on), "
        "watch (only print the difference) or off (compare neither the places of buffers nor windows that the program "
        "registers)",
        is_shared=True,
    )
    integrations: tuple[str, ...] | None = _setting(
        "SYMM_REGISTER_INTEGRATIONS",
        None,
        _integrations,
        "frameworks whose symmetric memory tracehook makes: sglang, vllm, megatron, or auto (all of them); unset: none",
        is_shared=True,
    )
    pool_limit: int | None = _setting(
        "SYMM_REGISTER_POOL_LIMIT",
        None,
        in_bytes_of,
        "most bytes of symmetric memory on a device, such as 8GiB; unset: tracehook sets no limit",
    )


def needs_job(config: Settings) -> bool:
    """Whether something that this process writes names its job."""
    return bool(config.log or config.metrics)


def shared(config: Settings) -> dict[str, str]:
    """Return what the ranks of a job must have alike: texts by variable."""
    found = {}
    for entry in fields(Settings):
        value = getattr(config, entry.name)
        if entry.metadata["is_shared"]:
            found[entry.metadata["variable"]] = ",".join(value) if isinstance(value, tuple) else str(value)
    return found


def table() -> list[tuple[str, str, str]]:
    """Return (variable, default, meaning) of every setting, in the order of the documentation."""
    rows = []
    for entry in fields(Settings):
        default = entry.default
        if entry.metadata["shown"]:
            shown = entry.metadata["shown"]
        elif default is None or default is False:
            shown = "unset"
        elif isinstance(default, tuple):
            shown = ",".join(default)
        else:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
        rows.append((entry.metadata["variable"], shown, entry.metadata["meaning"]))
    return rows


_GUARD = "set SYMM_REGISTER_GUARD=on, watch or off"
# Variables of 0.1.0.
_REPLACED = {
    "SYMM_REGISTER_LOCAL_MIN": "set SYMM_REGISTER_SEGMENTS=from-{}",
    "SYMM_REGISTER_LOG_PACKED": "set SYMM_REGISTER_LOG_LIMIT, which bounds the log of a process",
    "SYMM_REGISTER_ON_ERROR": _GUARD,
    "SYMM_REGISTER_ON_STALL": _GUARD,
    "SYMM_REGISTER_OTEL": "let a Collector of OpenTelemetry read the logs, as docs/operations.md shows",
    "SYMM_REGISTER_VERIFY": _GUARD,
}


def from_environment(environment: Mapping[str, str] = os.environ) -> tuple[Settings, list[str]]:
    """Read the environment.

    Returns the settings, and one line for each variable that was not understood (its default is used) or that begins
    with ``SYMM_REGISTER_`` but is none of ours (a typing error, most likely). Never raises.
    """
    values: dict[str, Any] = {}
    complaints = []
    known = {entry.metadata["variable"]: entry for entry in fields(Settings)}
    for variable, entry in known.items():
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            values[entry.name] = entry.metadata["read"](text)
        except SettingError as problem:
            shown = {name: default for name, default, _ in table()}[variable]
            complaints.append(f"{variable}={text!r}: {problem}; using the default ({shown})")
    for variable in sorted(environment):
        if variable in _REPLACED:
            complaints.append(f"{variable} has no effect any more: {_REPLACED[variable].format(environment[variable])}")
        elif variable.startswith("SYMM_REGISTER_") and variable not in known:
            close = difflib.get_close_matches(variable, known, n=1, cutoff=0.9)
            all_known = f"{variable} is not a variable of tracehook; known are {', '.join(known)}"
            complaints.append(
                f"{variable} is not a variable of tracehook; is {close[0]} meant?" if close else all_known
            )
    return Settings(**values), complaints

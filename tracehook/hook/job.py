"""The job that this process belongs to: the id that its launcher gave, or one that tracehook makes and passes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from tracehook.log import job_id
from tracehook.settings import JOB

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_NO_CHOICE = "none"  # what torchrun calls every job that has no --rdzv-id
_FROM_A_SHELL = "/interactive"  # stands behind the id of a process in which a person types

_joined = ""  # what this process, or the one that it was forked from, has left for its children


class JobId(NamedTuple):
    """What the first line of a log says of the job. `launcher`: the id in the launcher's own log, if it is another."""

    id: str | None
    launcher: str | None


NONE = JobId(None, None)


def join(environment: MutableMapping[str, str] = os.environ) -> JobId:
    """Return the job of this process. The first process of a job makes the id, and leaves it to its children.

    A process that has a rank and finds no id has none: it is not the first one, and the others would make other ids.
    """
    global _joined
    given = environment.get(JOB, "")
    if not given or _is_another_job(given):
        begin(environment)
    given = _joined = environment.get(JOB, "")
    if _is_chosen(given):
        return JobId(given, None)
    inherited = _slurm(environment) or given.removesuffix(_FROM_A_SHELL) or None
    chosen = _torchrun(environment) or inherited
    return JobId(chosen, inherited if inherited != chosen else None)


def begin(environment: MutableMapping[str, str] = os.environ) -> None:
    """Begin a job here: leave a new id in `environment`, unless somebody else began it, or a person chose its id."""
    given = environment.get(JOB, "")
    if _slurm(environment) or any(name in environment for name in _RANKS) or _is_chosen(given):
        return
    is_shell = hasattr(sys, "ps1") or sys.flags.interactive  # IPython and notebooks set ps1 too
    environment[JOB] = job_id.make() + (_FROM_A_SHELL if is_shell else "")


def _is_chosen(given: str) -> bool:
    return bool(given) and not job_id.is_made(given.removesuffix(_FROM_A_SHELL))


def _is_another_job(given: str) -> bool:
    """Whether this process was started as a command of its own from a shell or notebook that has the id `given`."""
    is_of_multiprocessing = any(part.startswith("from multiprocessing.") for part in sys.orig_argv)
    return given.endswith(_FROM_A_SHELL) and given != _joined and not is_of_multiprocessing


def _torchrun(environment: Mapping[str, str]) -> str | None:
    """Return the id that torchrun gave.

    Its default is no id: on one host, that of torchrun's own process is better. Several hosts have nothing else in
    common.
    """
    name = environment.get("TORCHELASTIC_RUN_ID") or None
    on_one_host = environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE")
    return None if name == _NO_CHOICE and (on_one_host or _slurm(environment)) else name


def _slurm(environment: Mapping[str, str]) -> str | None:
    return environment.get("SLURM_JOB_ID") or None


def attempt(environment: Mapping[str, str] = os.environ) -> str:
    """Return what keeps the keys of a restarted process from those of an earlier attempt, which may be in one store.

    It is empty in the first attempt: ranks that another launcher started have no number. It is empty too where several
    agents of torchrun may count their attempts differently.
    """
    count = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"attempt_{count}/" if count != "0" and environment.get("GROUP_WORLD_SIZE") == "1" else ""

"""What ranks compare first, in the first round of a communicator that all of them come to.

Each rank says in a greeting which format and version of tracehook it speaks, where it is, and its settings. Of
another format or version nothing is agreed on: all ranks raise one sentence. Settings that differ stop nobody: all
ranks say one sentence, and follow the setting that does least.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tracehook
from tracehook.agreement.rank_names import RankNames

FORMAT = 2  # of posts and verdicts
GUARD = "SYMM_REGISTER_GUARD"
GUARDS = ("off", "watch", "on")  # from the least that tracehook may do to a job to the most


class RankPlace(NamedTuple):
    """Where a rank is. `host`: see :func:`this_host`; `fabric`: of its device, empty if it is in none."""

    host: str = ""
    fabric: str = ""


NOWHERE = RankPlace()


@functools.cache
def this_host() -> str:
    """Return what names this host among those of the job, as NCCL does: ``NCCL_HOSTID``, or its name and its boot."""
    if named := os.environ.get("NCCL_HOSTID"):
        return named
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def greeting(place: RankPlace, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what this rank says; `settings`: texts by variable."""
    return {"version": tracehook.__version__, **place._asdict(), "settings": dict(settings)}


def refusal(about: str, greetings: Sequence[Mapping[str, Any]], names: RankNames) -> str:
    """Return why these ranks cannot agree on anything; empty if they can."""
    for what, told in {
        "format": [f"format {one.get('format', FORMAT)}" for one in greetings],
        "version": [f"tracehook {one['version']}" if one.get("version") else "" for one in greetings],
    }.items():
        if len(set(told)) > 1 and (what == "format" or all(told)):
            return (
                f"{about}: the ranks run different versions of tracehook: {_by_rank(told, names)}; nothing was "
                "registered or called. Install one version of tracehook on all ranks"
            )
    return ""


def another_format(text: str) -> str:
    """Return what a rank says that reads a verdict of another format."""
    return f"the ranks run different versions of tracehook ({text}). Install one version of tracehook on all ranks"


def shaken(about: str, greetings: Sequence[Mapping[str, Any]], names: RankNames) -> dict[str, Any]:
    """Return what the ranks share once all have heard all greetings."""
    return {
        "domain": domain(greetings),
        "guard": guard(greetings),
        "differences": differences(about, greetings, names),
    }


def domain(greetings: Sequence[Mapping[str, Any]]) -> str:
    """Return what joins these ranks: ``one_host``, ``several`` hosts, or empty: only NCCL knows."""
    hosts, fabrics = ({one.get(what, "") for one in greetings} for what in RankPlace._fields)
    if "" in hosts:
        return ""
    if len(hosts) == 1:
        return "one_host"
    return "" if len(fabrics) == 1 and fabrics != {""} else "several"  # NVLink may join the hosts of one fabric


def differences(about: str, greetings: Sequence[Mapping[str, Any]], names: RankNames) -> list[str]:
    """Return one sentence for each setting that differs between these ranks."""
    settings = [one.get("settings", {}) for one in greetings]
    found = []
    for variable in sorted({variable for one in settings for variable in one}):
        values = [repr(one.get(variable, "unknown")) for one in settings]
        if len(set(values)) > 1:
            found.append(f"{about}: {variable} differs: {_by_rank(values, names)}. Set it alike on all ranks")
    return found


def guard(greetings: Sequence[Mapping[str, Any]]) -> str:
    """Return what tracehook may do to the job, as far as all of these ranks allow it."""
    told = {one.get("settings", {}).get(GUARD, GUARDS[-1]) for one in greetings}
    return next((value for value in GUARDS if value in told), GUARDS[-1])


def _by_rank(values: Sequence[str], names: RankNames) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {names.named(found)}" for value, found in ranks.items())

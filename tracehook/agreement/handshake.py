"""What ranks say of themselves in the first round of a communicator that all of them come to; see README.md."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tracehook
from tracehook.agreement.rank_names import RankNames

FORMAT = 2  # of posts and verdicts
GUARD = "SYMM_REGISTER_GUARD"
GUARDS = ("off", "watch", "on")  # from the least that tracehook may do to a job to the most


class RankPlace(NamedTuple):
    """Where a rank is."""

    host: str = ""  # this_host()
    fabric: str = ""  # of its device; empty: it is in none


@functools.cache
def this_host() -> str:
    """Return what names this host among those of the job, as NCCL does: ``NCCL_HOSTID``, or its name and its boot."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    except OSError:  # not there, or kept from containers
        boot_id = ""
    return os.environ.get("NCCL_HOSTID") or f"{os.uname().nodename} {boot_id}"


def greeting(place: Sequence[str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what this rank says; `settings`: texts by variable."""
    return {"version": tracehook.__version__, **RankPlace(*place)._asdict(), "settings": dict(settings)}


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


def shaken(about: str, greetings: Sequence[Mapping[str, Any]], names: RankNames) -> dict[str, Any]:
    """Return what the ranks share once all have heard all greetings, with a sentence for each setting that differs."""
    settings = [one.get("settings", {}) for one in greetings]
    differences = []
    for variable in sorted({variable for one in settings for variable in one}):
        values = [repr(one.get(variable, "unknown")) for one in settings]
        if len(set(values)) > 1:
            differences.append(f"{about}: {variable} differs: {_by_rank(values, names)}. Set it alike on all ranks")
    guards = {one.get(GUARD) for one in settings}
    return {
        "domain": domain(greetings),
        "guard": next((value for value in GUARDS if value in guards), GUARDS[-1]),  # what all of them allow
        "differences": differences,
    }


def domain(greetings: Sequence[Mapping[str, Any]]) -> str:
    """Return what joins these ranks: ``one_host``, ``several`` hosts, or empty: only NCCL knows."""
    hosts, fabrics = ({one.get(what, "") for one in greetings} for what in RankPlace._fields)
    if "" in hosts or (len(hosts) > 1 and len(fabrics) == 1 and "" not in fabrics):
        return ""  # one fabric may join the hosts
    return "one_host" if len(hosts) == 1 else "several"


def _by_rank(values: Sequence[str], names: RankNames) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {names.named(found)}" for value, found in ranks.items())

"""Finds and loads policies: the entry points of the group ``tracehook.policies`` of whatever is installed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from textwrap import shorten

from tracehook.policies.base import Policy

GROUP = "tracehook.policies"


@dataclass(frozen=True)
class PolicyEntry:
    """A policy by name: the policy, or why there is none."""

    name: str
    problem: str = ""
    """Why it cannot be used, in one line; empty if it can."""
    policy: Policy | None = None


def find(names: Sequence[str]) -> list[PolicyEntry]:
    """Load the policies of these names, and no others. One entry a name; a missing one has a `problem`."""
    try:
        offered = _offered()
    except Exception as problem:  # the files of some installed package, or how the program lets Python read files
        return [PolicyEntry(name, f"cannot be looked up: {in_one_line(problem)}") for name in names]
    missing = f"not installed; installed are {', '.join(sorted(offered)) or 'none'}"
    return [_load(name, offered[name]) if name in offered else PolicyEntry(name, problem=missing) for name in names]


def in_one_line(problem: BaseException) -> str:
    """Return type and text of an exception as one line of at most 300 characters."""
    return shorten(" ".join(traceback.format_exception_only(problem)), 300)


def _offered() -> dict[str, list[metadata.EntryPoint]]:
    offered: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        offered.setdefault(point.name, []).append(point)
    return offered


def _load(name: str, points: Sequence[metadata.EntryPoint]) -> PolicyEntry:
    packages = sorted(f"{point.dist.name} {point.dist.version}" if point.dist else "?" for point in points)
    package = ", ".join(packages)
    if len(points) > 1:
        # Which one comes first depends on the order of sys.path, which need not be the same on all ranks.
        return PolicyEntry(name, f"offered by several packages ({package}): uninstall all but one")
    try:
        policy = points[0].load()
    except (Exception, SystemExit) as problem:  # a script that is no module ends the process that imports it
        return PolicyEntry(name, f"{points[0].value} ({package}) cannot be loaded: {in_one_line(problem)}")
    if not callable(policy):
        return PolicyEntry(name, f"{points[0].value} ({package}) is no function but {type(policy).__name__}")
    return PolicyEntry(name, policy=policy)

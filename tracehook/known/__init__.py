"""Bugs of NCCL, PyTorch and others that somebody has reported already: on which job they bear, and what helps.

The bugs are data, in the TOML files beside this one (README.md says how to add one). :func:`those` reads them, and
:meth:`Bug.against` holds one against what is known of a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from tracehook.versions import nccl_name

VERSIONS = ("nccl", "torch", "driver")
TRAITS = {  # in words, if it is so and if it is not
    "several_hosts": ("the job has several hosts", "the job has one host"),
    "infiniband": ("the hosts have InfiniBand or RoCE", "the hosts have no InfiniBand"),
    "fabric": ("an NVLink fabric joins the hosts", "no NVLink fabric joins the hosts"),
    "aarch64": ("the hosts are aarch64", "the hosts are not aarch64"),
    "registered": ("segments are registered", "no segment is registered"),
    "windows": ("there are windows", "there are no windows"),
    "graphs": ("calls are captured into CUDA graphs", "no call is captured"),
    "expandable": ("torch's segments are expandable", "torch's segments are not expandable"),
    "sleeps": ("memory is unmapped and mapped again", "no memory is unmapped"),
    "multicast": ("the devices have multicast", "the devices have no multicast"),
    "copy_engines": ("NCCL copies by copy engines", "NCCL uses no copy engine"),
    "suspends": ("communicators are suspended", "no communicator is suspended"),
    "symm_mem": ("torch's symmetric memory is used", "torch's symmetric memory is not used"),
}
SEEN = {  # by an audit of a job that has ended
    "aborts": ("a process ended by SIGABRT", "no process ended by SIGABRT"),
    "all_came": ("all ranks came to the window that waits", "some ranks did not come to the window that waits"),
    "deregistering": ("a deregistration waits", "no deregistration waits"),
}
EFFECTS = {
    "hang": "ranks wait for ever",
    "wrong": "results are wrong",
    "crash": "a call fails, or the process ends",
    "memory": "memory is not given back",
    "nothing": "something has no effect",
}
DANGEROUS = ("hang", "wrong", "crash")
_LIMIT = re.compile(r"(>=|<)(\d+(?:\.\d+)*)$")


@dataclass(frozen=True)
class JobFacts:
    """What is known of a job; what is not there is unknown."""

    versions: Mapping[str, str] = field(default_factory=dict)  # of VERSIONS
    traits: Mapping[str, bool] = field(default_factory=dict)  # of TRAITS
    seen: Mapping[str, bool] = field(default_factory=dict)  # of SEEN
    environment: Mapping[str, str] | None = None  # None: unknown


@dataclass(frozen=True)
class Bearing:
    """A bug that no known fact rules out: `because` of what, and only `if` what else is so, in words."""

    bug: Bug
    because: tuple[str, ...]
    if_also: tuple[str, ...]


@dataclass(frozen=True)
class Bug:
    """One entry. `rules`: those of the audit whose findings it may explain; `also`: other reports of it."""

    name: str
    effect: str
    what: str
    remedy: str
    source: str
    when: Mapping[str, Any]
    rules: tuple[str, ...] = ()
    seen: Mapping[str, bool] = field(default_factory=dict)
    reported: str = ""  # year and month, if known; of what was measured for tracehook, those of the measurement
    also: tuple[str, ...] = ()

    @property
    def is_dangerous(self) -> bool:
        """Whether a job hangs, ends or computes wrong results by it."""
        return self.effect in DANGEROUS

    @property
    def is_of_versions(self) -> bool:
        """Whether it depends on a version or a setting. What depends on neither is a trap that tracehook guards."""
        return any(name in self.when for name in (*VERSIONS, "environment"))

    def against(self, facts: JobFacts) -> Bearing | None:
        """Return why it may bear on a job, or None if something known rules it out."""
        because: list[str] = []
        unknown: list[str] = []
        for name, wanted in self.when.items():
            if name in VERSIONS:
                have = facts.versions.get(name)
                says = f"{_TITLES[name]} {nccl_name(have or wanted)}"
                holds = None if have is None else fits(have, wanted)
            elif name == "environment":
                says = ", ".join(f"{variable}{_compared(text)}" for variable, text in wanted.items())
                holds = None if facts.environment is None else _environment_fits(facts.environment, wanted)
            else:
                says, trait = TRAITS[name][not wanted], facts.traits.get(name)
                holds = None if trait is None else trait == wanted
            if holds is False:
                return None
            (unknown if holds is None else because).append(says)
        return Bearing(self, tuple(because), tuple(unknown))

    def is_seen(self, facts: JobFacts) -> bool:
        """Whether an audit saw all that it would see of this bug, besides a finding of `rules`."""
        return all(facts.seen.get(name) == wanted for name, wanted in self.seen.items())


_TITLES = {"nccl": "NCCL", "torch": "torch", "driver": "driver"}


@cache
def those() -> tuple[Bug, ...]:
    """Return all bugs, by name."""
    import tomllib  # costs time, and most processes do not need it

    found = []
    for file in files("tracehook.known").iterdir():
        if file.name.endswith(".toml"):
            for told in tomllib.loads(file.read_text(encoding="utf-8"))["bug"]:
                lists = {name: tuple(told[name]) for name in ("rules", "also") if name in told}
                found.append(Bug(**{**told, **lists}))
    return tuple(sorted(found, key=lambda bug: bug.name))


def bearing_on(facts: JobFacts, bugs: Iterable[Bug] | None = None) -> list[Bearing]:
    """Return those that nothing known rules out; first those that are certain."""
    found = [found for bug in (those() if bugs is None else bugs) if (found := bug.against(facts)) is not None]
    return sorted(found, key=lambda one: (len(one.if_also), one.bug.name))


def fits(version: str, limits: str) -> bool:
    """Return whether a version lies within limits such as ``>=2.28.3,<2.30.7``; what follows a plus does not count."""
    own = _numbers(nccl_name(version).partition("+")[0])
    return all(_numbers(bound) <= own if sign == ">=" else own < _numbers(bound) for sign, bound in parted(limits))


def parted(limits: str) -> list[tuple[str, str]]:
    """Return the sign and the version of each limit; raises ValueError if a text is none."""
    found = [_LIMIT.match(limit) for limit in limits.split(",")]
    if None in found:
        raise ValueError(f"{limits!r} is no list of limits such as '>=2.28.3,<2.30.7'")
    return [(limit[1], limit[2]) for limit in found if limit]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _environment_fits(environment: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """``=1``: the variable is set so; ``!=0``: it is not set so."""
    return all(
        (environment.get(variable, "") == text.lstrip("!=")) != text.startswith("!")
        for variable, text in wanted.items()
    )


def _compared(text: str) -> str:
    return f" is not {text[2:]}" if text.startswith("!") else text

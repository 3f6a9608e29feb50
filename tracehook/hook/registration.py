"""Which segments tracehook registers, when, and with what effect: told to the native side when it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracehook.hook.extension import EXTENSIONS
from tracehook.log.stderr import warn
from tracehook.log.tables import KINDS, MEMORIES
from tracehook.nccl import effect, segment_rules
from tracehook.nccl.segment_rules import ALWAYS, SegmentRule
from tracehook.settings import Settings

if TYPE_CHECKING:
    from tracehook._core import Segment, SegmentSource

_ALL_OF_JOB, _ALL_HERE = (
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
)
_HOSTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_MOST = 1 << 20  # ranks of a job on one host
_NEVER = (1 << 64) - 1
BETWEEN_HOSTS = (
    "its ranks are on several hosts, where a registration may make NCCL hang: SYMM_REGISTER_LOCAL=all registers there"
)
_FOR_NCCL = {"NCCL_GRAPH_REGISTER": "0"}
_paying = dict(effect.PAYING)  # the sizes of this process
_set_for_nccl: dict[str, str] = {}  # variables that this process did not have before
_rules = [ALWAYS]  # of this process, by position


def choose_rules(config: Settings) -> list[SegmentRule]:
    """Read the rules by which segments are left out, once: before :func:`take_over_memory`, and before the log."""
    registers = config.local == "all" or (config.local in ("auto", "own") and config.memory == "vmm")
    ours = _FOR_NCCL if _sets_for_nccl(config) else _set_for_nccl
    theirs = {name: value for name, value in os.environ.items() if name not in ours}
    _rules[:] = segment_rules.rules_of(config.segments, theirs, warn, registers=registers)
    return _rules


def begin(core: Any, config: Settings) -> None:
    """Tell the native side what can take effect. Before CUDA is up; `core` has a process."""
    version, settings = core.nccl_version(), os.environ
    core.set_effects(*(effect.numbers(MEMORIES, one_host, version, settings) for one_host in (True, False)))
    core.set_rules([rule.what.row() for rule in _rules[1:]])
    core.set_host(_MOST if (known := ranks_of_host(settings)) is None else known, config.local == "all")
    choose_calls(core, config, {})


def choose_calls(core: Any, config: Settings, found: Mapping[str, effect.Threshold]) -> None:
    """Say which calls run on registered memory; what `found` leaves out has its default. All ranks do this alike.

    None does where segments come from cudaMalloc: NCCL could not use them, and the other ranks have to know.
    """
    source: SegmentSource = core.segment_source()
    of_use = config.memory == "vmm" and source.replaced
    _paying.update({**effect.PAYING, **found} if of_use else dict.fromkeys(effect.PAYING, effect.Threshold(None, None)))
    if any(rule.what.of_captured_calls() for rule in _rules):
        _paying.update({name: effect.Threshold(limit.eager, None) for name, limit in _paying.items()})
    for number, limit in enumerate(_paying.values()):
        core.set_threshold(number, *(_NEVER if value is None else value for value in limit))


def paying_calls() -> list[str]:
    """Return which calls run on registered memory here, as ranks compare it."""
    calls = [f"{name} {limit.in_words()}" for name, limit in _paying.items()]
    return calls + [rule.in_words() for rule in _rules[1:]]


def all_calls(core: Any, registered: bool) -> None:
    """Run all calls that could gain on registered memory, or none, until :func:`choose_calls`: to compare both."""
    size = 0 if registered else _NEVER
    for number in range(len(effect.PAYING)):
        core.set_threshold(number, size, size)


def cuda_is_up(core: Any, config: Settings, devices: int) -> None:
    """Ask which calls gain, which may depend on the device, before there is a call.

    Without a launcher that tells of hosts, more ranks than the host has GPUs are on several.
    """
    if config.memory == "vmm":
        found: dict[str, effect.Threshold] = {}
        for extension in EXTENSIONS:
            found |= extension.paying_calls(config)
        choose_calls(core, config, found)
    if ranks_of_host(os.environ) is None:
        core.set_host(max(devices, _gpus_of_host()), config.local == "all")


def take_over_memory(core: Any, config: Settings, is_initialized: bool) -> str:
    """Have segments come from the driver's virtual memory, if the settings say so; return why they do not.

    Where they do not and tracehook may register them, it stands before their free all the same: a segment that NCCL
    is busy with is freed later.
    """
    why = ""
    if config.memory == "vmm":
        why = _hindrance(is_initialized) or str(core.replace_segment_source(True))
        if not why:
            if _sets_for_nccl(config):
                keep_nccl_from_captures()
            return ""
        warn(f"SYMM_REGISTER_MEMORY=vmm has no effect: {why}; segments come from cudaMalloc")
    if config.local == "all":
        with suppress(RuntimeError):  # without it, or where another library stands there, a free waits
            core.replace_segment_source(False)
    return why


def keep_nccl_from_captures() -> None:
    """Have NCCL register nothing by itself for captured calls, unless the program's environment says otherwise.

    NCCL looks at its first captured call. Of a tensor of a scope and an ordinary one it would map the first alone, and
    hang: also at an address that nobody registered.
    """
    _set_for_nccl.update({name: value for name, value in _FOR_NCCL.items() if name not in os.environ})
    os.environ.update(_set_for_nccl)


def _sets_for_nccl(config: Settings) -> bool:
    """Whether tracehook, and not NCCL, registers for captured calls: then NCCL's variable is no answer to tracehook.

    Else NCCL registers such memory itself in captured calls, also on some ranks only, and before 2.29 one registration
    for messages and collectives, which hang then.
    """
    return config.memory == "vmm" and ranks_of_host(os.environ) != 0  # unknown is most often one host


def _hindrance(is_initialized: bool) -> str:
    if is_initialized:
        return "CUDA was up before tracehook started (set SYMM_REGISTER_HOOK=1, or call tracehook.enable() earlier)"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        return "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set"
    return ""


def ranks_of_host(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks a communicator of one host may have: 0 if the job has several hosts, None if unknown."""
    if environment.get("NCCL_HOSTID"):
        return 0
    for job, here in zip(_ALL_OF_JOB, _ALL_HERE, strict=True):
        if environment.get(job, "") and environment.get(here, ""):
            return _MOST if environment[job] == environment[here] else 0
    hosts = next((environment[name] for name in _HOSTS if environment.get(name, "")), "")
    if hosts:
        return _MOST if hosts == "1" else 0
    return None


def _gpus_of_host(folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Count also those that this process may not use."""
    try:
        return len(list(folder.iterdir()))
    except OSError:
        return 0


def told(core: Any) -> dict[str, Any]:
    """Return what ``tracehook.status()`` says of the memory of segments, and of those that are left out."""
    found: SegmentSource = core.segment_source()
    source = {
        "source": "vmm" if found.replaced else "torch",
        "segments": found.segments,
        "bytes": found.bytes,
        "refused": found.refused,
        "set_for_nccl": dict(_set_for_nccl),
    }
    asleep: list[Segment] = core.segments_asleep()
    sleep = {"segments": len(asleep), "bytes": sum(segment.size for segment in asleep)}
    return {"memory": source, "left_out": left_out(core), "asleep": sleep}


def left_out(core: Any) -> dict[str, Any]:
    """Count the segments that tracehook leaves unregistered, because NCCL could not use them or a rule says so."""
    rows = [row for row in core.communicators() if row["size"] > 1]
    reasons: list[str] = []
    by: dict[str, dict[str, int]] = {}
    count, nbytes = 0, 0
    segments: list[Segment] = core.segments()
    for segment in segments:
        why = [_why_left_out(core, segment, row) for row in rows if row["device"] == segment.device]
        if not any(why):
            continue
        count, nbytes = count + 1, nbytes + segment.size
        name, reason = next(each for each in why if each)
        if reason not in reasons:
            reasons.append(reason)
        if name:
            told = by.setdefault(name, {"segments": 0, "bytes": 0})
            told["segments"] += 1
            told["bytes"] += segment.size
    return {"segments": count, "bytes": nbytes, "why": "; ".join(reasons), "by": by}


def _why_left_out(core: Any, segment: Segment, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of the rule ("" if NCCL could not use the segment), and why; None if it is not left out."""
    unusable = effect.row_of(effect.Facts(MEMORIES[segment.memory], row["one_host"], core.nccl_version(), os.environ))
    if rule := _rule_for(segment, row):
        return rule.name, f"{unusable.text}: {unusable.remedy}" if rule is ALWAYS else f"{rule.name} leaves them out"
    if row["at_calls"] and not row["one_host"]:
        return "", BETWEEN_HOSTS
    if row["at_calls"] and unusable.effect == effect.NONE:
        return "", f"{unusable.text}: {unusable.remedy}"
    return None


def _rule_for(segment: Segment, row: Mapping[str, Any]) -> SegmentRule | None:
    """Return the first rule that leaves a segment out with a communicator.

    Calls inside a host run on registered memory by what all their ranks have alike, so a rule that looks at the
    segment of one rank has no say there.
    """
    if KINDS[row["local"]] != "own":
        return None
    fitting = segment.left_out & ~row["spared"]
    for position, rule in enumerate(_rules):
        has_say = not row["at_calls"] or rule is ALWAYS or rule.what.of_all_segments() or rule.what.of_captured_calls()
        if fitting >> position & 1 and has_say:
            return rule
    return None


def about(core: Any, address: int, nbytes: int, communicator: int) -> str:
    """Say whether memory is registered locally with a communicator (its raw pointer; 0: none), and with what effect."""
    segment: Segment | None = core.segment_at(address)
    row = next((each for each in core.communicators() if each["pointer"] == communicator), None)
    if segment is None or address + nbytes > segment.address + segment.size:
        return "not registered: it lies in no segment that tracehook follows"
    if row is None:
        return "not registered: the group has no communicator yet"
    if KINDS[row["local"]] == "off" or (KINDS[row["local"]] == "own" and not core.registering()):
        return "not registered: tracehook registers nothing with this communicator"
    facts = effect.Facts(MEMORIES[segment.memory], row["one_host"], core.nccl_version(), os.environ)
    rule = effect.row_of(facts)
    if row["size"] > 1 and (by := _rule_for(segment, row)) is not None and by is not ALWAYS:
        return f"not registered: {by.name} leaves it out"
    if not row["at_calls"]:
        return f"registered, {_EFFECTS[rule.effect]}{_reason(rule)}"
    if not row["one_host"]:
        return f"not registered ({BETWEEN_HOSTS})"
    if rule.effect == effect.NONE:
        return f"not registered{_reason(rule)}"
    if not core.segment_source().replaced:
        return "not registered: NCCL could use it; set SYMM_REGISTER_MEMORY=vmm"
    seen = f"; NCCL used {row['in_effect']} of {row['made']} registrations of this communicator" if row["made"] else ""
    calls = ", ".join(f"{call} {limit.in_words()}" for call, limit in _paying.items())
    return f"registered, in effect {_EFFECTS[rule.effect]} for {calls}{seen}"


_EFFECTS = {
    effect.NONE: "without effect",
    effect.HOST: "inside the host",
    effect.NETWORK: "in effect on the network",
    effect.UNKNOWN: "with an effect that is not known",
}


def _reason(rule: effect.EffectRule) -> str:
    return f" ({rule.text}: {rule.remedy})" if rule.remedy else ""

"""What this project knows of NCCL's functions and headers, and of each function what is done about it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tracehook" / "cpp"
EXPORTS = ROOT / "tests" / "unit" / "nccl_exports.txt"
HEADER = ROOT / "tests" / "unit" / "nccl_header.txt"
GONE = "gone"
# What may be called past tracehook, and why.
PASSED_BY = {
    "ncclCommCount": "asks for a number",
    "ncclCommUserRank": "asks for a number",
    "ncclCommCuDevice": "asks for a number",
    "ncclGetErrorString": "asks for a text",
    "ncclGetUniqueId": "makes no communicator yet",
    "ncclCommGetUniqueId": "makes no communicator yet",
    "ncclGetVersion": "asks for a number",
    "ncclMemAlloc": "memory of its own, which the allocator's events name where it gets into a pool",
    "ncclMemFree": "the memory of ncclMemAlloc",
    "ncclCommMemStats": "asks for numbers, as tracehook does",
    "ncclCommQueryProperties": "asks for numbers",
    "ncclResetDebugInit": "about NCCL's own log",
    "ncclResetDebugInitInternal": "about NCCL's own log",
    "ncclSetEncryption": "about NCCL's own connections, before there is a communicator",
    "ncclWinGetUserPtr": "asks for the address below a window",
}
# The same, by how names begin.
FAMILIES = {
    "ncclGet": "asks for addresses and endpoints of a window's peers",
    "ncclParam": "NCCL's settings, by name",
    "ncclTeam": "asks for numbers of ranks",
    "ncclGin": "describes what a device communicator shall have",
    "ncclLLA2A": "describes what a device communicator shall have",
    "ncclLsaBarrier": "describes what a device communicator shall have",
}
# How NCCL's header calls the types that calls.def calls otherwise.
TYPES = {
    "ncclComm_t": "Comm",
    "cudaStream_t": "Stream",
    "ncclWindow_t": "Window",
    "ncclUniqueId": "UniqueId",
    "ncclConfig_t": "Config",
    "ncclCollConfig_t": "CollConfig",
    "ncclSimInfo_t": "Simulation",
    "ncclWaitSignalDesc_t": "SignalDesc",
    "ncclDevCommRequirements_t": "DevCommRequirements",
    "ncclDevComm_t": "DevComm",
    "size_t": "std::size_t",
    "unsigned int": "unsigned",
    **dict.fromkeys(("ncclDataType_t", "ncclRedOp_t", "ncclResult_t", "ncclScalarResidence_t"), "int"),
}
_ROW = re.compile(r"^(GUARDED|COUNTED|TRANSFER|PLACED|LIFECYCLE)\((nccl\w+)(?:, )?(.*)\)$", re.MULTILINE)
_OTHER_COLUMNS = {"GUARDED": 1, "COUNTED": 5, "TRANSFER": 5, "PLACED": 6, "LIFECYCLE": 0}


def rows() -> dict[str, list[str]]:
    """Return the arguments of each row of the table of interposed calls."""
    found = _ROW.findall((NATIVE / "nccl" / "calls.def").read_text())
    return {name: [part for part in rest.split(", ") if part][_OTHER_COLUMNS[kind] :] for kind, name, rest in found}


def interposed() -> set[str]:
    """Return the calls that have a wrapper."""
    return {*rows(), "ncclGetLastError"}  # which stands beside the table


def emulated() -> set[str]:
    """Return the calls that the NCCL of a rehearsal has."""
    text = "".join(file.read_text() for file in (NATIVE / "rehearsal" / "nccl").glob("exports_*.cpp"))
    collectives = re.findall(r"^COLLECTIVE\((nccl\w+)", text, re.M)
    others = re.findall(r"^TRACEHOOK_NCCL\([^,]+, (nccl\w+)", text, re.M)
    return {*others, *collectives, *(f"{name}Config" for name in collectives)}


def why_passed_by(name: str) -> str | None:
    """Return the reason to let this call pass tracehook by."""
    families = (reason for beginning, reason in FAMILIES.items() if name.startswith(beginning))
    return PASSED_BY.get(name) or next(families, None)


def arguments(signature: str) -> list[str]:
    """Return the arguments of a function as calls.def has to have them."""
    written = signature.partition("(")[2].rstrip(")").split(", ")
    return [re.sub(r"unsigned int|\w+", lambda word: TYPES.get(word[0], word[0]), one) for one in written if one]


def exports() -> dict[str, set[str]]:
    """Return what each version of NCCL exports that earlier ones did not."""
    lines = EXPORTS.read_text().splitlines()
    return {version: set(names.split()) for version, _, names in (line.partition(":") for line in lines[1:])}


def facts() -> dict[str, dict[str, str]]:
    """Return what the headers of each version say that those of the version before did not."""
    found: dict[str, dict[str, str]] = {}
    for line in HEADER.read_text().splitlines()[1:]:
        version, name, text = line.split(" ", 2)
        found.setdefault(version, {})[name] = text
    return found


def latest() -> dict[str, str]:
    """Return what the headers say in the newest version that has it."""
    return {name: text for facts_of_one in facts().values() for name, text in facts_of_one.items()}


def abi() -> str:
    """Return the part of NCCL's header that the project wrote down for itself."""
    return (NATIVE / "nccl" / "abi.h").read_text()


def order(version: str) -> tuple[int, ...]:
    """Return what compares as versions do."""
    return tuple(int(part) for part in version.split("."))


def record(version: str, names: set[str], new: dict[str, str]) -> None:
    """Write exports and facts of a version into the lists, in the order of versions."""
    exported = [f"{version}: {' '.join(sorted(names))}"] if names else []
    for file, lines in (
        (EXPORTS, exported),
        (HEADER, [f"{version} {name} {text or '-'}" for name, text in new.items()]),
    ):
        title, *known = file.read_text().splitlines()
        both = sorted([*known, *lines], key=lambda line: order(re.split("[: ]", line)[0]))
        file.write_text("\n".join([title, *both]) + "\n")


def newest() -> dict[str, str]:
    """Return up to which version somebody looked at what no header says, by the file that has it."""
    traits = re.search(r"newest that was looked at, ([\d.]+)\)", (NATIVE / "nccl" / "traits.def").read_text())
    rules = re.search(r"^NEWEST = (\d+)", (ROOT / "tracehook" / "nccl" / "rules.py").read_text(), re.MULTILINE)
    assert traits is not None
    assert rules is not None
    code = int(rules[1])
    return {
        "tracehook/cpp/nccl/traits.def": traits[1],
        "tracehook/nccl/rules.py": f"{code // 10000}.{code // 100 % 100}.{code % 100}",
    }

"""Hold a version of NCCL against what this project knows of it: ``make nccl-diff NCCL=2.32.3 SINCE=2.28.9``.

It reads exports and headers, which say nothing about behaviour. A version is a wheel that pip finds; a folder with
``nccl.h`` and ``exports.txt`` does as well. The exit status is 1 if the project does not know all of it. With
RECORD=yes the lists of exports and facts learn it; then tests/unit/test_calls.py wants an answer for each new function.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from support import nccl_header, nccl_known
from support.elf import exported
from support.nccl_known import GONE, order

WHEEL = "nvidia-nccl-cu13"
CACHE = nccl_known.ROOT / "build" / "nccl"
LIST = "exports.txt"
NO_WHEEL = 2  # an exit status
# What to look at when something new belongs to one of these.
PLACES = {
    "ncclConfig_t": "tracehook/cpp/nccl/abi.h (Config), birth.cpp",
    "ncclCollConfig_t": "tracehook/cpp/nccl/abi.h (CollConfig); coll_config.cpp, which decides what ranks compare",
    "ncclSimInfo_t": "tracehook/cpp/nccl/abi.h (Simulation)",
    "ncclResult_t": "tracehook/cpp/nccl/abi.h (Result), cpp/rehearsal/nccl/exports_communicators.cpp",
    "ncclDataType_t": "tracehook/cpp/nccl/abi.h (DataType), tracehook/log/calls.py, nccl/rules.py",
    "ncclRedOp_t": "tracehook/cpp/nccl/abi.h (RedOp), tracehook/log/calls.py, nccl/rules.py",
    "NCCL_WIN_": "tracehook/cpp/nccl/window_guard.h, cpp/rehearsal/nccl/window_registration.cpp",
    "NCCL_CTA_POLICY_": "tracehook/nccl/rules.py, paths.py",
}


class Version:
    """The exports and the headers of one version."""

    def __init__(self, named: str) -> None:
        folder = Path(named) if Path(named, LIST).exists() else unpacked(named)
        self.name = nccl_header.version(folder)
        self.exports = set((folder / LIST).read_text().split())
        found = nccl_header.facts(folder).items()
        self.facts = {name: text for name, text in found if not _is_function(name, text) or name in self.exports}


def unpacked(version: str) -> Path:
    """Return the folder with the headers of a wheel, and the list of what its library exports."""
    folder = CACHE / version
    if not (folder / LIST).exists():
        with tempfile.TemporaryDirectory() as scratch:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
            if subprocess.run([*pip, "--dest", scratch, f"{WHEEL}==={version}"]).returncode:
                raise SystemExit(NO_WHEEL)  # pip has said why
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                library = Path(archive.extract("nvidia/nccl/lib/libnccl.so.2", scratch))
                for name in nccl_header.HEADERS:
                    if f"nvidia/nccl/include/{name}" in archive.namelist():
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        (folder / name).write_bytes(archive.read(f"nvidia/nccl/include/{name}"))
            names = sorted(name for name in exported(library) if name.startswith("nccl"))
            (folder / LIST).write_text("\n".join(names) + "\n")
    return folder


def unknown(version: Version) -> tuple[set[str], dict[str, str]]:
    """Return the exports and the facts of a version that the project has not recorded."""
    listed, recorded = nccl_known.exports(), nccl_known.facts()
    pairs = {pair for facts in recorded.values() for pair in facts.items()}
    facts = {name: text for name, text in version.facts.items() if (name, text) not in pairs}
    if order(version.name) >= max(map(order, recorded)):
        last = nccl_known.latest()
        facts |= {name: GONE for name in last.keys() - version.facts if last[name] != GONE}
    return version.exports - set().union(*listed.values()), facts


def told(name: str, text: str | None, older: str | None) -> str:
    """Return what is new about a name, and where the project has to answer it."""
    subject = f"{name}: {text or 'in no header'}" + (f", in place of {older}" if older else "")
    if text is None or _is_function(name, text):
        answer = [_answer(name, text)]
    else:
        answer = [place for beginning, place in PLACES.items() if name.startswith(beginning)]
    return " -> ".join([subject, *answer])


def _answer(name: str, signature: str | None) -> str:
    row, reason = nccl_known.rows().get(name), nccl_known.why_passed_by(name)
    if row is not None and signature is not None and row != nccl_known.arguments(signature):
        return f"tracehook/cpp/nccl/calls.def has other arguments: {', '.join(row)}"
    if name in nccl_known.interposed():
        return "interposed" if name in nccl_known.emulated() else "interposed; the emulated NCCL lacks it"
    if reason is not None:
        return f"passed by: {reason}"
    return "neither in tracehook/cpp/nccl/calls.def, nor in PASSED_BY of tests/support/nccl_known.py"


def report(version: Version, since: Version | None) -> Iterator[str]:
    """Give the lines about a version, unknown things last."""
    exports, facts = unknown(version)
    if since is not None:
        for name in sorted(since.exports - version.exports):
            yield f"  since {since.name}, gone: {name}"
        for name, text in {**dict.fromkeys(sorted(version.exports - since.exports)), **version.facts}.items():
            if since.facts.get(name) != text or name not in since.exports | since.facts.keys():
                yield f"  since {since.name}: {told(name, version.facts.get(name), since.facts.get(name))}"
    older = nccl_known.latest()
    for name in {**dict.fromkeys(sorted(exports)), **facts}:
        yield f"  UNKNOWN: {told(name, facts.get(name), older.get(name))}"
    for file, newest in nccl_known.newest().items():
        if order(version.name) > order(newest):
            yield f"  Nobody has held {file} against a version after {newest}: no header says what that file says."
    known = f"{len(version.exports)} exports and {len(version.facts)} facts of its headers"
    yield f"NCCL {version.name}: {len({*exports, *facts})} unknown to tracehook, of {known}"


def main(arguments: list[str]) -> int:
    """Print what is new; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nccl", help="the version, or a folder")
    parser.add_argument("--since", help="an older one: what changed since then, known or not")
    parser.add_argument("--record", action="store_true", help="write what is unknown into the lists beside the tests")
    given = parser.parse_args(arguments)
    version = Version(given.nccl)
    print(*report(version, Version(given.since) if given.since else None), sep="\n")
    exports, facts = unknown(version)
    if given.record:
        nccl_known.record(version.name, exports, facts)
    return 1 if exports or facts else 0


def _is_function(name: str, text: str) -> bool:
    return name.startswith("nccl") and text.endswith(")") and not set(name) & set(".[")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``@pytest.mark.rehearse(devices=4)``: pytest runs the test's body on ranks, each on an emulated device.

Every pytest in an environment with tracehook loads this module, so it imports nothing but pytest.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

_SENTENCE = (
    "rehearse(devices=2, nccl=None, memory=None, faults=None, timeout=120, hang_timeout=20): run the test's body on "
    "that many ranks, on emulated GPUs, and fail if one fails, if a rule of NCCL is broken, or if ranks wait for each "
    "other"
)
_OPTIONS = {"nccl": None, "memory": None, "faults": None, "timeout": 120, "hang_timeout": 20}
_MEANINGS = {86: "a rule of NCCL was broken", 87: "ranks waited for each other", 124: "it took too long"}
_MOST_LINES = 150  # of what the ranks said


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _SENTENCE)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on ranks."""
    marker = pyfuncitem.get_closest_marker("rehearse")
    if marker is None:
        return None
    devices, options = _read(marker)
    arguments = _pickled(pyfuncitem)
    path = pyfuncitem.path
    command = [sys.executable, "-m", "tracehook", "rehearse", "--warm", "--devices", str(devices)]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    command += ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    command += ["-m", "tracehook.rehearsal.body", str(path), pyfuncitem.function.__qualname__, arguments.hex()]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # torchrun sets that too, but with a banner
    ran = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", cwd=path.parent, env=environment
    )
    sys.stdout.write(ran.stdout)
    if ran.returncode:
        pytest.fail(f"rehearsal on {devices} ranks: {_report(ran.returncode, ran.stderr.splitlines())}", pytrace=False)
    _end_as_ranks(re.findall(r"^rank \d+: (Skipped|XFailed): (.*)", ran.stderr, re.MULTILINE), devices)
    return True


def _end_as_ranks(outcomes: list[tuple[str, str]], devices: int) -> None:
    """Skip the test, or expect its failure, as its ranks did."""
    if not outcomes:
        return
    (kind, reason), *others = outcomes
    if len(outcomes) < devices or any(other != kind for other, _ in others):
        pytest.fail(f"rehearsal on {devices} ranks: {len(outcomes)} of them ended by {kind}: {reason}", pytrace=False)
    (pytest.skip if kind == "Skipped" else pytest.xfail)(reason)


def _report(status: int, lines: list[str]) -> str:
    """Say why a rehearsal failed: in a line, then what ranks raised and the rehearsal found, then the rest."""
    raised = [line for line in lines if re.match(r"rank \d+: ", line)]
    found = len(lines)
    while found and lines[found - 1].startswith(("rehearsal:", "  ")):  # it speaks last, below torchrun
        found -= 1
    if status == 1 and raised:
        # The first line that is not indented; those of an exception group stand behind a bar.
        causes = (re.match(r"(rank \d+: )(?:  \| )?(?!Traceback)([^\s+|].*)", line) for line in raised)
        why = next(("".join(cause.groups()) for cause in causes if cause), raised[-1])
    else:
        named = [re.sub(r"^(rehearsal:|hang:|\s+)+\s*", "", line) for line in lines[found:]]
        why = ": ".join([_MEANINGS.get(status, f"exit status {status}"), *named[status == 86 :][:1]])
    others = [line for line in lines[:found] if line not in raised]
    return "\n".join([why, *raised, *lines[found:], "", "Other output:", *others[-_MOST_LINES:]])


def _read(marker: pytest.Mark) -> tuple[int, dict[str, Any]]:
    given: dict[str, Any] = dict(zip(("devices",), marker.args, strict=False))
    given.update(marker.kwargs)
    unknown = sorted(given.keys() - _OPTIONS.keys() - {"devices"})
    if unknown or len(marker.args) > 1:
        odd = ", ".join(unknown) or repr(marker.args[1])
        pytest.fail(f"@pytest.mark.rehearse does not know {odd}: {_SENTENCE}", False)
    return given.pop("devices", 2), _OPTIONS | given


def _pickled(item: pytest.Function) -> bytes:
    """Return the test's arguments, which go to other processes."""
    if item.cls is not None:
        pytest.fail(f"@pytest.mark.rehearse: {item.name} is a method: write a function, which ranks can import", False)
    arguments = {name: item.funcargs[name] for name in inspect.signature(item.function).parameters}
    pickled, problem = {}, ""
    for name, value in arguments.items():
        try:
            pickled[name] = pickle.dumps(value)
        except Exception as failure:
            problem = f"argument {name!r} of {item.name} cannot be sent to the ranks ({failure})"
    if problem:
        pytest.fail(f"@pytest.mark.rehearse: {problem}: use values that pickle takes, such as numbers and paths", False)
    return pickle.dumps(pickled)

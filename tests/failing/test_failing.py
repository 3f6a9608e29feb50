"""One call fails, on one rank: each of NCCL, CUDA and the store that tracehook makes in a small program.

The program first runs without a failure, and its calls are counted. So a new call of tracehook comes under test by
itself. FAILING_ALL=1: each call fails at each of its places, and not only at the first and the last.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from support.audits import Audit
from support.rehearsal import QUICK, RULES_BROKEN, Rehearsal, rehearse, start_of

from . import variants

HERE = Path(__file__).parent
TESTS = HERE.parent
IS_WHOLE = os.environ.get("FAILING_ALL", "0") == "1"
STEPS = "scope twice local graph passing free"


class Kind(NamedTuple):
    """One kind of program."""

    steps: str
    ranks: int
    env: dict[str, str]


KINDS = {
    "virtual memory": Kind(STEPS, 2, {"SYMM_REGISTER_LOCAL": "all", "SYMM_REGISTER_MEMORY": "vmm"}),
    "aliases": Kind(STEPS, 2, {"SYMM_REGISTER_LOCAL": "auto", "TRACEHOOK_EMU_NCCL_VERSION": "23007"}),
    "peers": Kind("peers free scope", 3, {}),
}
SURROUNDINGS = QUICK | {
    "SYMM_REGISTER_TIMEOUT": f"{variants.LONG:g}",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRACEHOOK_EMU_WINDOW_TIMEOUT": f"{variants.DEADLINE:g}",
}
STORE_CALLS = ("add", "check", "compare_set", "multi_get", "set", "wait")
PEER_KEEPS = {"peer-mapped-after-free", "peer-mapping-left"}
# What the emulated NCCL and the audit may report because a call failed.
FOUND = {
    "cuMemUnmap": {"agreement-timeout", "ledger-differs", *PEER_KEEPS},
    "cudaIpcCloseMemHandle": PEER_KEEPS,
    "cudaFree": {"agreement-timeout", "ledger-differs"},
    "ncclCommDeregister": {"registration-failed"},
    # That the ranks differ since then is said after some seconds, to which a slow machine comes.
    "ncclCommRegister": {"missing-ranks", "registration-failed", "registrations-uneven"},
    "ncclCommWindowDeregister": {"freed-while-registered"},
    "ncclCommWindowRegister": {"agreement-failed", "agreement-timeout", "registration-failed"},
    "ncclMemAlloc": {"agreement-failed"},
    variants.LINE: {"agreement-failed", "agreement-timeout", "placement-refused", "registration-failed"},
} | {f"rounds.{call}": {"agreement-failed", "agreement-timeout"} for call in STORE_CALLS}
BROKEN = {
    "cudaIpcCloseMemHandle": {"I1"},
    "ncclCommRegister": {"L7", "L8"},
    "ncclCommWindowDeregister": {"C4"},
    "ncclCommWindowRegister": {"W1", "W12", "W16"},
    "cuMemUnmap": {"L7", "L8"},  # torch uses the memory again that it could not free
    "rounds.wait": {"W1", "W12", "W16"},
    variants.LINE: {"W1", "W12", "W16"},
}


def play(folder: Path, kind: Kind, log: Path, *arguments: str, seconds: float = 60) -> Rehearsal:
    """Run the job."""
    job = start_of(folder, HERE / "job.py", TESTS / "harmless")
    env = SURROUNDINGS | kind.env | {"TEST_STEPS": kind.steps}
    return rehearse(job, str(folder), *arguments, ranks=kind.ranks, log=log, env=env, timeout=seconds)


def allowed_for(played: list[variants.Variant], allowed: dict[str, set[str]]) -> set[str]:
    """Return what may be reported after these failures."""
    return set().union(*(allowed.get(variant["call"], set()) for variant in played))


def problems(folder: Path, kind: Kind, planned: list[variants.Variant]) -> list[str]:
    """Play these variants; return what is wrong with their ends."""
    ranks = range(kind.ranks)
    (folder / "variants").write_text(json.dumps(planned))
    first, found = 0, []
    while first < len(planned):
        log = folder / f"log {first}"
        run = play(folder, kind, log, str(first), seconds=60 + 20 * len(planned))
        told = [run.facts(rank) for rank in ranks]
        after = first
        while after < len(planned) and all(f"variant {after}" in each for each in told):
            ends = [each[f"variant {after}"] for each in told]
            found += [f"{planned[after]}: {problem}" for problem in variants.problems(planned[after], ends)]
            after += 1
        played, last = planned[first:after], planned[after - 1]
        if run.finished.late or run.finished.orphans or run.status not in (0, RULES_BROKEN):
            found.append(f"the processes end with status {run.status} after {last}: {run.output[-5000:]}")
            after += 1
        elif unexplained := set(run.broken) - allowed_for(played, BROKEN):
            found.append(f"{unexplained} were broken up to {last}: {run.finished.lines('broken')}")
        elif unexplained := Audit(log, "--json").rules() - allowed_for(played, FOUND):
            found.append(f"the audit finds {unexplained} up to {last}")
        first = after
    return [problem[:6000] for problem in found]


def counts(folder: Path, kind: Kind) -> tuple[Rehearsal, list[dict[str, int]]]:
    """Return how often each rank makes each call in a turn in which nothing fails."""
    counted = play(folder, kind, folder / "counted").assert_good()
    return counted, [counted.facts(rank)["later"] for rank in range(kind.ranks)]


@pytest.mark.timeout(7200 if IS_WHOLE else 400)
@pytest.mark.parametrize(
    ("name", "part", "parts"),
    [("virtual memory", 0, 2), ("virtual memory", 1, 2), ("aliases", 0, 1), ("peers", 0, 1)],
)
def test_a_call_that_fails_leaves_no_rank_apart(tmp_path: Path, name: str, part: int, parts: int) -> None:
    """All ranks go on with right results, or all raise what failed; then nothing is registered, and memory is back."""
    run, made = counts(tmp_path, KINDS[name])
    planned = list(variants.of(made, IS_WHOLE, IS_WHOLE or name == "virtual memory"))[part::parts]
    assert len(planned) > 20, run.output
    assert problems(tmp_path, KINDS[name], planned) == []


@pytest.mark.timeout(7200 if IS_WHOLE else 400)
@pytest.mark.parametrize("name", ["virtual memory", "aliases"][: 1 + IS_WHOLE])
def test_a_signal_at_any_line_leaves_the_process_usable(tmp_path: Path, name: str) -> None:
    """The program gets what the handler raised. It is in no scope then, nothing is registered, and memory is back."""
    run, made = counts(tmp_path, KINDS[name])
    planned = variants.of_lines(made, IS_WHOLE)
    assert len(planned) > 10, run.output
    assert problems(tmp_path, KINDS[name], planned) == []

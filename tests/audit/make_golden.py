"""Make the golden directories again: ``python tests/audit/make_golden.py [NAME ...]``.

Runs each job in a rehearsal, with what goldens.py says is done to it, and writes what the audit says beside the logs.
Says where that differs from goldens.py; look at the difference before you commit it. The jobs that need a mutated core
need the last build of tracehook (`make build`).
"""

import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.packages import install
from support.processes import SCRIPTS, run
from support.rehearsal import JOBS

from audit.goldens import DIRECTORY, GOLDENS, HERE, MOST_BYTES, Golden, audit, unpack
from audit.mutants import build

OF_REHEARSALS = {"rule-broken", "ranks-hung"}
TIMEOUTS = {"SYMM_REGISTER_TIMEOUT": "2", "TRACEHOOK_EMU_WINDOW_TIMEOUT": "6"}


def rehearse(golden: Golden, scratch: Path) -> tuple[Path, list[str], str]:
    """Run the job; return the directory of its logs, the rules of NCCL that were broken, and what it said."""
    log, site = scratch / "log", scratch / "site"
    paths = [JOBS, site]
    site.mkdir()
    env = {**TIMEOUTS, "SYMM_REGISTER_JOB": golden.name, **golden.env}
    if golden.policy:
        code = (HERE / "jobs" / f"{golden.policy}.py").read_text()
        install(site, golden.policy, "1.0", {golden.policy: code}, {golden.policy: f"{golden.policy}:choose"})
        env |= {"SYMM_REGISTER_POLICY": golden.policy}
    if golden.mutation:
        paths.insert(0, build(golden.mutation, scratch / "mutant"))
    job, *arguments = golden.job.split()
    folder = HERE / "jobs" if (HERE / "jobs" / job).exists() else JOBS
    line = [str(SCRIPTS / "tracehook"), "rehearse", "--hang-timeout", str(golden.hang), "--devices", str(golden.ranks)]
    if golden.hook:
        line += ["--log", str(log)]
    else:
        env |= {"SYMM_REGISTER_LOG": str(log)}
    if golden.faults:
        line += ["--faults", golden.faults]
    if golden.torchrun:
        torchrun = os.path.relpath(SCRIPTS / "torchrun", folder)
        launcher = [torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id"]
        launcher += [golden.name, "--nproc-per-node", str(golden.ranks)]
    elif golden.until:
        launcher = [sys.executable, str(JOBS / "launch_and_end.py"), str(golden.ranks), *golden.until.split()]
    else:
        launcher = [sys.executable, str(JOBS / "launch.py"), str(golden.ranks), sys.executable]
    env |= {"PYTHONPATH": ":".join(map(str, paths))}
    # By relative names: the logs hold the program's.
    finished = run([*line, "--", *launcher, job, *arguments], env, timeout=120, cwd=folder)
    return log, sorted(set(re.findall(r"rehearsal: rule (\w+) broken", finished.err))), finished.output


def damage(golden: Golden, log: Path) -> None:
    """Do to the files what goldens.py says, and pack the rings."""
    for rank, harm in golden.damage.items():
        (file,) = log.glob(f"*.rank{rank}.*.jsonl")
        harm(file)
    for ring in log.glob("*.ring"):
        ring.with_suffix(".ring.xz").write_bytes(lzma.compress(ring.read_bytes()))
        ring.unlink()


def forget_the_rehearsal(log: Path) -> None:
    """Remove what only a rehearsal knows: the audit has to see the fault in the logs of the ranks, as of devices."""
    for file in log.glob("*.jsonl"):
        if b'"event":"rehearsal.' in file.read_bytes():
            file.unlink()


def make(golden: Golden) -> list[str]:
    """Make one directory; return what is not as goldens.py says."""
    with tempfile.TemporaryDirectory() as name:
        log, broken, output = rehearse(golden, Path(name))
        if not log.is_dir():
            return [f"no logs\n{output}"]
        if not OF_REHEARSALS & set(golden.rules):
            forget_the_rehearsal(log)
        damage(golden, log)
        shutil.rmtree(golden.path, ignore_errors=True)
        shutil.copytree(log, golden.path)
    return [*expect(golden), *_different("broken rules of NCCL", golden.broken, broken, output)]


def expect(golden: Golden) -> list[str]:
    """Write what the audit says of a directory; return what is not as goldens.py says."""
    with tempfile.TemporaryDirectory() as name:
        text, findings = audit(unpack(golden.path, Path(name)))
    (golden.path / "expected.txt").write_text(text)
    (golden.path / "expected.json").write_text(findings)
    rules = [row[0] for row in json.loads(findings or "[]")]
    first = re.search(r"^First (?:divergence|finding), .*? \(([\w-]+)\):", text, re.MULTILINE)
    told = list(dict.fromkeys([first[1]] if first else []) | dict.fromkeys(rules))
    wrong = _different("rules", set(golden.rules), set(told), text)
    if golden.rules and told[:1] != list(golden.rules[:1]):
        wrong.append(f"the first finding is {told[:1]}, expected {golden.rules[0]}\n{text}")
    size = sum(file.stat().st_size for file in golden.path.iterdir())
    return wrong + [f"{size} bytes are many"] * (size > MOST_BYTES)


def _different(what: str, expected: object, seen: object, more: str) -> list[str]:
    same = (sorted(expected), sorted(seen))  # type: ignore[call-overload]
    return [f"{what}: expected {same[0]}, got {same[1]}\n{more}"] * (same[0] != same[1])


def main(names: list[str]) -> int:
    """Make those that are named, or all; with `--expect` only write what the audit says now."""
    act = expect if "--expect" in names else make
    names = [name for name in names if name != "--expect"]
    unknown = set(names) - {golden.name for golden in GOLDENS}
    if unknown:
        print(f"no such golden directory: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    DIRECTORY.mkdir(exist_ok=True)
    status = 0
    for golden in GOLDENS:
        if not names or golden.name in names:
            wrong = act(golden)
            print(golden.name, "as expected" if not wrong else "\n  ".join(["", *wrong]), flush=True)
            status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

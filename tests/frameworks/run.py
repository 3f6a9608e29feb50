"""Rehearse a job of every framework on four ranks, audit its log, and print a table: ``make frameworks``.

Arguments: the venv with the frameworks (install.py makes it), a folder for what the jobs say and log, and words; with
words, only the rows in whose package or name one of them stands. The exit status is 1 if a row is not as it should be.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.processes import SCRIPTS, run
from support.rehearsal import read_logs

from frameworks.cases import CASES, Case

JOBS = Path(__file__).with_name("jobs")
RANKS = 4
SECONDS = 600


@dataclass(frozen=True)
class Row:
    """What came of a case."""

    case: Case
    version: str
    ranks: int
    seconds: float
    status: int
    audit: str
    problem: str  # empty if all is as it should be, or as it is known to be

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        return (
            self.case.package,
            self.version,
            self.case.name,
            str(self.ranks),
            f"{self.seconds:.0f}",
            str(self.status),
            self.audit,
        )


def judge(case: Case, status: int, ranks: int, findings: set[str]) -> tuple[str, str]:
    """Return what the table says of the audit, and the problem.

    `ranks`: how many registered memory. `findings`: the rules of the audit that were broken.
    """
    said = ", ".join(f"{rule} ({case.findings.get(rule, 'not expected')})" for rule in sorted(findings)) or "clean"
    if status:
        return said, f"exit status {status}"
    if ranks != RANKS:
        return said, f"{ranks} ranks registered memory, expected {RANKS}"
    return said, "findings of the audit" if findings - case.findings.keys() else ""


def rehearse(case: Case, venv: Path, folder: Path) -> Row:
    """Run one case, and leave what it said and its log in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "log"
    with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as scratch:
        env = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        env |= {"HF_HOME": scratch, "RAY_TMPDIR": scratch}  # Ray's sockets need a short name
        command = ["python", "-m", "tracehook", "rehearse", "--warm", "--devices", str(RANKS), "--log", str(log)]
        begin = time.monotonic()
        ran = run([*command, "--", *case.launcher, str(JOBS / case.job), *case.arguments], env, SECONDS)
        seconds = time.monotonic() - begin
    (folder / "output.txt").write_text(ran.output)
    ranks = {each.rank for each in read_logs(log) if any(event["event"] == "register.local" for event in each.events)}
    audited = run([SCRIPTS / "tracehook", "audit", "--json", log])
    broken = {each["rule"] for each in json.loads(audited.out)["findings"]} if audited.status < 2 else {"no log"}
    said, problem = judge(case, ran.status, len(ranks), broken)
    return Row(case, version_of(case.package, venv), len(ranks), seconds, ran.status, said, problem)


def version_of(package: str, venv: Path) -> str:
    """Return the version that the venv has."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return subprocess.check_output([venv / "bin" / "python", "-c", code, package], text=True).strip()


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the table, as docs/rehearsal.md has them."""
    yield "| framework | version | job | ranks | seconds | exit status | audit |"
    yield "|---|---|---|---|---|---|---|"
    for each in rows:
        yield f"| {' | '.join(each.cells())} |"


def main(venv: Path, folder: Path, *words: str) -> int:
    """Rehearse what was asked for, and print the table."""
    rows = []
    for number, case in enumerate(CASES):
        if words and not any(word in f"{case.package} {case.name}" for word in words):
            continue
        at = folder / f"{number}-{Path(case.job).stem}"
        rows.append(rehearse(case, venv, at))
        said = f"{rows[-1].problem}: see {at}" if rows[-1].problem else rows[-1].audit
        print(f"{case.package}, {case.name}: {said}", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    return int(not rows or any(each.problem for each in rows))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), *sys.argv[3:]))

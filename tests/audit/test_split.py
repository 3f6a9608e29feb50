"""An audit whose work tasks share (`--on ray`) says what an audit in one process says, to the letter.

Here the tasks run in this process; tests/audit/test_on_ray.py runs them on Ray.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.audits import CLEAN, FINDINGS, UNUSABLE, Audit, change, event_line, insert, log_of, with_begin
from support.parted import Program, churn

from audit.goldens import DIRECTORY, GOLDENS, unpack
from tracehook.audit import on_ray, rules, split
from tracehook.audit.export import export
from tracehook.audit.rules import check
from tracehook.audit.split import SplitStore
from tracehook.audit.store import Store
from tracehook.audit.verdict import Filter, judge
from tracehook.audit.workers import InProcess, NotWhole
from tracehook.log.lines import LogError

NOT_WHOLE = 3


def verdict(store: Store) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    with store:
        return judge(store, check(store), Filter()).as_json()


def expect_alike(logs: Path, pieces: int) -> None:
    """Assert that the audit of `logs` says the same in pieces as in one."""
    assert verdict(SplitStore(logs, InProcess(), pieces=pieces)) == verdict(Store(logs))


@pytest.mark.parametrize("name", [golden.name for golden in GOLDENS])
def test_pieces_of_a_golden_directory(name: str, tmp_path: Path) -> None:
    """Each rank in a block of its own, and the communicators in as many parts."""
    expect_alike(unpack(DIRECTORY / name, tmp_path), pieces=4)


@pytest.mark.parametrize("name", ["window-order", "rank-missing-order", "lost-events"])
def test_pieces_of_an_export(name: str, tmp_path: Path) -> None:
    """Tasks read Parquet as they read logs."""
    export(unpack(DIRECTORY / name, tmp_path), tmp_path / "out")
    expect_alike(tmp_path / "out", pieces=4)


def test_packed_logs(logs: Path) -> None:
    """A task unpacks its own: what this process unpacked lies on this machine only."""
    for log in list(logs.glob("*.jsonl")):
        log.with_suffix(".jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    expect_alike(logs, pieces=2)


def test_damaged_logs(logs: Path) -> None:
    """Lines that are no events are named once, with their file and line."""
    change(log_of(logs, 0), insert(b"what is this"))
    change(log_of(logs, 1), lambda lines: [*lines[:30], event_line(seq=-5), *lines[31:], b'{"event": "trace'])
    (logs / "clean.rank7.vm.7.jsonl").write_bytes(b"")
    expect_alike(logs, pieces=2)


def test_a_helper_in_another_block_than_its_rank(logs: Path) -> None:
    """A data loader's process has its parent's rank and may end without a word: blocks with one rank become one."""
    begin = json.loads(log_of(logs, 1).read_text().splitlines()[0])
    (logs / "clean.rank1.vm.99999.jsonl").write_text(json.dumps(begin | {"pid": 99999}) + "\n")
    expect_alike(logs, pieces=3)
    assert verdict(SplitStore(logs, InProcess(), pieces=3))["clean"]


def test_communicators_of_which_lines_were_thrown_away(tmp_path: Path) -> None:
    """Whether one can still be judged depends on all ranks: one that ended early is left out in every block."""
    ranks = [Program(tmp_path, rank=rank, ranks=2) for rank in range(2)]
    for program in ranks:
        for comm in (1, 2):
            program.join(comm)
        program.leave(2)
    for program, count in zip(ranks, (12_000, 100), strict=True):
        churn(program, count)
    for program in ranks:
        program.leave(1)
        program.end()
    found = verdict(Store(tmp_path))
    assert (found["looked"]["shortened"], found["looked"]["communicators"]) == (1, 1)
    assert verdict(SplitStore(tmp_path, InProcess(), pieces=2)) == found


# --- the pieces ---


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 9])
def test_blocks_are_neighbours_and_none_is_left_out(tmp_path: Path, pieces: int) -> None:
    """However many there are to be. Small logs share a block rather than have one each."""
    logs = unpack(DIRECTORY / "rank-missing-order", tmp_path)
    asked: list[range] = []

    class Counting(InProcess):
        def start(self, about: str, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
            if task is split.tasks.read:
                asked.append(range(arguments[0].first, arguments[0].first + len(arguments[0].logs)))
            return super().start(about, task, *arguments, results=results)

    with SplitStore(logs, Counting(), pieces=pieces) as store:
        processes = len(store.directory.logs)
    assert [number for block in asked for number in block] == list(range(processes))
    assert 1 <= len(asked) <= min(pieces, processes)
    assert len(asked) == pieces or pieces > 2


def test_a_rule_says_its_scope() -> None:
    """A file without one is refused: in pieces the rule would see too little."""
    text = "-- severity: error\n-- sentence: It is wrong.\n-- advice: Mend it.\n-- divergence: never\nSELECT 1\n"
    with pytest.raises(ValueError, match=re.escape("new.sql: its scope is None; expected a line -- scope: process |")):
        rules._parse("new.sql", text)
    assert rules._parse("new.sql", text + "-- scope: job\n").scope == "job"


# --- the command ---


@pytest.fixture
def on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--on ray` run two tasks, in this process."""
    monkeypatch.setattr(split, "_SMALLEST", 1)
    use(monkeypatch, InProcess(2))


def use(monkeypatch: pytest.MonkeyPatch, workers: InProcess) -> None:
    """Let `--on ray` give its tasks to these workers."""

    @contextlib.contextmanager
    def workers_on(_on: str) -> Iterator[InProcess]:
        yield workers

    monkeypatch.setattr(on_ray, "workers_on", workers_on)


@pytest.mark.usefixtures("on_two")
@pytest.mark.parametrize("options", [[], ["--json"], ["--rank", "1"], ["--comm", "x"], ["--max-findings", "1"]])
@pytest.mark.parametrize("name", ["clean", "placement-differs"])
def test_the_command_prints_the_same(name: str, options: list[str], tmp_path: Path) -> None:
    """On stdout and stderr, with the same exit status; also from a relative path."""
    unpack(DIRECTORY / name, tmp_path)
    with contextlib.chdir(tmp_path):
        whole, pieces = Audit(name, *options), Audit(name, *options, "--on", "ray")
    assert repr(pieces) == repr(whole)


@pytest.mark.usefixtures("on_two")
def test_several_runs_are_refused(logs: Path) -> None:
    """As in one process: a rank that began twice under one id."""
    again = log_of(logs, 1).read_text().splitlines()
    later = [json.dumps((event := json.loads(line)) | {"t_ns": event["t_ns"] + 10**13}) for line in again]
    second = logs / "clean.rank1.vm.88888.jsonl"
    second.write_text("\n".join(later) + "\n")
    with_begin(second, pid=88888)
    for log in logs.glob("*.jsonl"):
        with_begin(log, attempt=None)
    whole, pieces = Audit(logs), Audit(logs, "--on", "ray")
    assert repr(pieces) == repr(whole.expect(UNUSABLE, "holds several runs"))


def test_a_worker_that_is_lost_leaves_no_verdict(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what was not judged; the status is neither that of a clean audit nor that of findings."""

    class Losing(InProcess):
        def result(self, of: Any) -> Any:
            if isinstance(of, split.tasks.Judged):
                raise NotWhole("nobody judged 1 log (rank 1)")
            return of

    use(monkeypatch, Losing())
    done = Audit(logs, "--on", "ray")
    assert (done.status, done.out) == (NOT_WHOLE, "")
    assert done.err == "tracehook audit: nobody judged 1 log (rank 1)\n"


@pytest.mark.parametrize("on", ["", "spark", "ray:", "ray://", "ray://host", "host", "ray://ho st:1", "host:port"])
def test_a_place_that_is_none(logs: Path, on: str) -> None:
    """One line says what may be given."""
    Audit(logs, "--on", on).expect(UNUSABLE, f"--on {on!r}: expected ray (", "ray://HOST:PORT", "HOST:PORT")


def test_without_ray(logs: Path) -> None:
    """One line says what to install. Without `--on` nothing is missing."""
    with mock.patch.dict("sys.modules", {"ray": None}):
        Audit(logs, "--on", "ray").expect(UNUSABLE, "--on ray: the package ray is not installed", "tracehook[ray]")
        Audit(logs).expect(CLEAN)


def test_what_a_task_cannot_find_is_named(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does not see the directory: nothing is taken for an empty log."""
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.suffix != ".jsonl" and exists(path))
    with pytest.raises(LogError, match=r"clean\.rank0.*jsonl: not there on .*; expected a directory that all workers"):
        SplitStore(logs, InProcess())


def test_another_version_on_a_worker_is_refused(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules may be others."""
    monkeypatch.setattr(split.tracehook, "__version__", "9.9")
    done = split.tasks.read
    monkeypatch.setattr(split.tasks, "read", lambda wanted: _of_version("0.0", done(wanted)))
    with pytest.raises(LogError, match=r"a worker has tracehook 0\.0, and this process 9\.9"):
        SplitStore(logs, InProcess())


def _of_version(version: str, made: Any) -> Any:
    read, events = made
    return split.replace(read, version=version), events


def test_findings_have_their_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker there is one piece."""
    use(monkeypatch, InProcess())
    Audit(unpack(DIRECTORY / "no-end", tmp_path), "--on", "ray").expect(FINDINGS, "no-end")

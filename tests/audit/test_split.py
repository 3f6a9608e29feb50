"""An audit whose logs are read by tasks (`--on ray`) says what an audit in one process says, to the letter.

Here the tasks run in this process; tests/audit/test_on_ray.py runs them on Ray.
"""

import contextlib
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.audits import CLEAN, UNUSABLE, Audit, change, event_line, insert, log_of
from support.parted import Program, churn

from audit.goldens import DIRECTORY, unpack
from tracehook.audit import on_ray, split
from tracehook.audit.rules import check
from tracehook.audit.split import Block, NotWhole, Read
from tracehook.audit.store import Store
from tracehook.audit.verdict import Filter, judge
from tracehook.log.lines import LogError

NOT_WHOLE = 3


class Here:
    """Reads each block in this process."""

    count = 4

    def __init__(self) -> None:
        self.asked: list[Block] = []

    def read(self, blocks: Sequence[Block]) -> Iterator[Read]:
        """Read them in turn."""
        self.asked += blocks
        return map(split.read, blocks)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let also small logs be split."""
    monkeypatch.setattr(split, "_SMALLEST", 1)


def verdict(store: Store) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    with store:
        return judge(store, check(store), Filter()).as_json()


def expect_alike(logs: Path) -> None:
    """Assert that the audit of `logs` says the same in blocks as in one."""
    assert verdict(Store(logs, workers=Here())) == verdict(Store(logs))


@pytest.mark.parametrize("name", ["rule-broken", "lost-events", "peer-timeout", "rank-missing-order"])
def test_blocks_of_a_golden_directory(name: str, tmp_path: Path) -> None:
    """Also what a rehearsal says of a rank in another block, and what only a ring has."""
    expect_alike(unpack(DIRECTORY / name, tmp_path))


def test_packed_logs(logs: Path) -> None:
    """A task unpacks its own: what this process unpacked lies on this machine only."""
    for log in list(logs.glob("*.jsonl")):
        log.with_suffix(".jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    expect_alike(logs)


def test_damaged_logs(logs: Path) -> None:
    """Lines that are no events are named once, with their file and line."""
    change(log_of(logs, 0), insert(b"what is this"))
    change(log_of(logs, 1), lambda lines: [*lines[:30], event_line(seq=-5), *lines[31:], b'{"event": "trace'])
    (logs / "clean.rank7.vm.7.jsonl").write_bytes(b"")
    expect_alike(logs)


def test_logs_in_parts(tmp_path: Path) -> None:
    """Whether a communicator can still be judged depends on the logs of all ranks."""
    ranks = [Program(tmp_path, rank=rank, ranks=2) for rank in range(2)]
    for program in ranks:
        for comm in (1, 2):
            program.join(comm)
        program.leave(2)
    for program, count in zip(ranks, (12_000, 100), strict=True):
        churn(program, count)
        program.leave(1)
        program.end()
    expect_alike(tmp_path)


def test_blocks_are_neighbours_and_none_is_left_out(tmp_path: Path) -> None:
    """Each log is in one block."""
    workers = Here()
    with Store(unpack(DIRECTORY / "rank-missing-order", tmp_path), workers=workers) as store:
        processes = len(store.directory.logs)
    numbers = [block.first + number for block in workers.asked for number in range(len(block.logs))]
    assert numbers == list(range(processes))
    assert 1 < len(workers.asked) <= workers.count


# --- the command ---


def use(monkeypatch: pytest.MonkeyPatch, workers: split.Workers) -> None:
    """Let `--on ray` give its tasks to these workers."""
    monkeypatch.setattr(on_ray, "workers_on", lambda _on: contextlib.nullcontext(workers))


@pytest.mark.parametrize("options", [["--json"], ["--rank", "1", "--max-findings", "1"]])
def test_the_command_prints_the_same(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stdout and stderr, with the same exit status; also from a relative path."""
    use(monkeypatch, Here())
    unpack(DIRECTORY / "placement-differs", tmp_path)
    with contextlib.chdir(tmp_path):
        whole, blocks = (Audit("placement-differs", *options, *more) for more in ([], ["--on", "ray"]))
    assert repr(blocks) == repr(whole)


def test_a_worker_that_is_lost_leaves_no_verdict(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what was not judged; the status is neither that of a clean audit nor that of findings."""

    class Losing(Here):
        def read(self, blocks: Sequence[Block]) -> Iterator[Read]:
            yield split.read(blocks[0])
            raise NotWhole(f"nobody judged {blocks[1].about}")

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


def test_another_version_on_a_worker_is_refused(logs: Path) -> None:
    """It may read events in another way."""

    class Older(Here):
        def read(self, blocks: Sequence[Block]) -> Iterator[Read]:
            return (replace(read, version="0.0") for read in super().read(blocks))

    with pytest.raises(LogError, match=r"a worker has tracehook 0\.0, and this process "):
        Store(logs, workers=Older())

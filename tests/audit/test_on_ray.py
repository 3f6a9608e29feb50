"""`tracehook audit --on ray`: the tasks of an audit in workers of Ray, also where one of them is killed.

tests/audit/test_split.py has everything that does not depend on who runs the tasks.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.audits import UNUSABLE, Audit
from support.processes import run

from audit.goldens import DIRECTORY, unpack
from audit.test_split import verdict
from tracehook.audit import split
from tracehook.audit.on_ray import OnRay
from tracehook.audit.split import Block, NotWhole, Read, read
from tracehook.audit.store import Store
from tracehook.log.lines import LogError

# Ray's own: sockets that its processes leave to the end of this one, and settings that it will change.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let also small logs be split."""
    monkeypatch.setattr(split, "_SMALLEST", 1)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a Ray with two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        tests = str(Path(__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([tests, *filter(None, sys.path)]))
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=200 << 20,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield ray
        ray.shutdown()


class Killing(OnRay):
    """The worker that reads rank 1 gets SIGKILL in its midst, as often as is said."""

    def __init__(self, ray: Any, times: int, notes: Path) -> None:
        super().__init__(ray)
        self._times, self._notes = times, notes

    def read(self, blocks: Sequence[Block], task: Callable[[Block], Read] = read) -> Iterator[Read]:
        """Read the blocks, and note each kill."""
        notes, times = self._notes, self._times

        def killed(block: Block) -> Read:
            done = task(block)
            if any(log.rank == 1 for log in block.logs):
                with notes.open("a") as file:
                    file.write("killed\n")
                if len(notes.read_text().splitlines()) <= times:
                    os.kill(os.getpid(), signal.SIGKILL)
            return done

        return super().read(blocks, killed)


def test_a_golden_directory_on_ray(ray: Any, tmp_path: Path) -> None:
    """Two workers find what one process finds."""
    logs = unpack(DIRECTORY / "rule-broken", tmp_path)
    assert verdict(Store(logs, workers=OnRay(ray))) == verdict(Store(logs))


def test_a_killed_worker_changes_nothing(ray: Any, tmp_path: Path) -> None:
    """Ray does its task once more: the findings are the same."""
    logs = unpack(DIRECTORY / "window-order", tmp_path)
    assert verdict(Store(logs, workers=Killing(ray, 1, tmp_path / "notes"))) == verdict(Store(logs))
    assert (tmp_path / "notes").read_text() == "killed\n" * 2


def test_a_worker_that_is_killed_each_time(ray: Any, tmp_path: Path) -> None:
    """Nothing is concluded, and the line names the ranks that nobody judged."""
    logs = unpack(DIRECTORY / "clean", tmp_path)
    with pytest.raises(NotWhole, match=r"not whole, so it concludes nothing: nobody judged .* \(rank 1\), because"):
        Store(logs, workers=Killing(ray, 9, tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "killed\n" * 3


def test_what_a_task_cannot_find(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of the logs is said here, in the same words."""
    logs = unpack(DIRECTORY / "clean", tmp_path)
    absolute = split._absolute
    monkeypatch.setattr(split, "_absolute", lambda log: replace(absolute(log), parts=[_elsewhere(log)]))
    with pytest.raises(LogError, match=r"nowhere\.jsonl: not there on .*; expected a directory that all workers"):
        Store(logs, workers=OnRay(ray))


def _elsewhere(log: Any) -> Any:
    return replace(log.parts[0], path=Path("/nowhere.jsonl"), text=Path("/nowhere.jsonl"))


def test_the_command_starts_a_ray_of_its_own(tmp_path: Path) -> None:
    """It prints what it prints without, and nothing else."""
    unpack(DIRECTORY / "no-end", tmp_path)
    command = [sys.executable, "-m", "tracehook", "audit", "no-end", "--json"]
    whole, pieces = (run([*command, *more], cwd=tmp_path, timeout=120) for more in ([], ["--on", "ray"]))
    assert (pieces.status, pieces.out, pieces.err) == (1, whole.out, "")


@pytest.mark.parametrize("on", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer(on: str) -> None:
    """One line says so at once; Ray itself would try for minutes."""
    Audit(DIRECTORY / "clean", "--on", on).expect(UNUSABLE, f"--on {on}: no Ray cluster that can be used answers there")

"""`tracehook audit --on ray`: the tasks of an audit in workers of Ray, also where one of them is killed.

tests/audit/test_split.py has every golden directory, and everything that does not depend on who runs the tasks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.audits import UNUSABLE, Audit
from support.processes import run

from audit.goldens import DIRECTORY, unpack
from audit.test_split import verdict
from tracehook.audit import split
from tracehook.audit.on_ray import OnRay
from tracehook.audit.split import SplitStore
from tracehook.audit.store import Store
from tracehook.audit.workers import NotWhole

# Ray's own: sockets that its processes leave to the end of this one, and settings that it will change.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


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
    """The worker of the n-th task gets SIGKILL in its midst, as often as is said."""

    def __init__(self, ray: Any, which: int, times: int, notes: Path) -> None:
        super().__init__(ray)
        self._which, self._times, self._notes = which, times, notes
        self._started = 0

    def start(self, about: str, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
        """Start the task, or one that is killed."""
        self._started += 1
        if self._started != self._which:
            return super().start(about, task, *arguments, results=results)
        notes, times = self._notes, self._times

        def killed(*given: Any) -> Any:
            done = task(*given)
            with notes.open("a") as file:
                file.write("killed\n")
            if len(notes.read_text().splitlines()) <= times:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return super().start(about, killed, *arguments, results=results)


@pytest.mark.parametrize("name", ["clean", "rank-missing-order", "rule-broken", "placement-refused"])
def test_golden_directories_on_ray(ray: Any, name: str, tmp_path: Path) -> None:
    """Two workers find what one process finds."""
    logs = unpack(DIRECTORY / name, tmp_path)
    assert verdict(SplitStore(logs, OnRay(ray), pieces=2)) == verdict(Store(logs))


@pytest.mark.parametrize(("which", "task"), [(1, "reads"), (4, "judges processes"), (6, "judges communicators")])
def test_a_killed_worker_changes_nothing(ray: Any, which: int, task: str, tmp_path: Path) -> None:
    """Ray does its task once more: the findings are the same."""
    logs = unpack(DIRECTORY / "window-order", tmp_path)
    workers = Killing(ray, which, 1, tmp_path / "notes")
    assert verdict(SplitStore(logs, workers, pieces=2)) == verdict(Store(logs)), task
    assert (tmp_path / "notes").read_text() == "killed\n" * 2, task


def test_a_worker_that_is_killed_each_time(ray: Any, tmp_path: Path) -> None:
    """Nothing is concluded, and the line names the ranks that nobody judged."""
    logs = unpack(DIRECTORY / "clean", tmp_path)
    with pytest.raises(NotWhole, match=r"not whole, so it concludes nothing: nobody judged 2 logs \(rank 1\), because"):
        SplitStore(logs, Killing(ray, 2, 9, tmp_path / "notes"), pieces=2)
    assert (tmp_path / "notes").read_text() == "killed\n" * 3


def test_what_a_task_cannot_find(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of the logs is said here, in the same words."""
    logs = unpack(DIRECTORY / "clean", tmp_path)
    absolute = split._absolute
    monkeypatch.setattr(split, "_absolute", lambda log: split.replace(absolute(log), parts=[_elsewhere(log)]))
    with pytest.raises(split.LogError, match=r"nowhere\.jsonl: not there on .*; expected a directory that all workers"):
        SplitStore(logs, OnRay(ray), pieces=2)


def _elsewhere(log: Any) -> Any:
    return split.replace(log.parts[0], path=Path("/nowhere.jsonl"), text=Path("/nowhere.jsonl"))


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

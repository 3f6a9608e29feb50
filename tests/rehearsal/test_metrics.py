"""Files of metrics as jobs leave them: of ranks that end, disagree or fork.

What hangs, is killed or finds a full disk: tests/unit/test_metrics.py and test_in_progress.py.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families
from support.processes import forked
from support.rehearsal import Rehearsal, rehearse

from tracehook.metrics.table import COMMON, METRICS

RANKS = 4


def play(tmp_path: Path, mode: str, ranks: int = RANKS, **given: Any) -> Rehearsal:
    """Run the job with metrics and a log."""
    env = {"SYMM_REGISTER_METRICS": str(tmp_path / "metrics"), **given.pop("env", {})}
    return rehearse("metrics.py", mode, ranks=ranks, log=tmp_path / "log", env=env, timeout=90, **given)


def files(tmp_path: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of each file of a rank, by the rank."""
    found = {}
    for path in (tmp_path / "metrics").glob("*.prom"):
        samples = [sample for metric in text_string_to_metric_families(path.read_text()) for sample in metric.samples]
        (rank,) = {sample.labels["rank"] for sample in samples}
        if rank:
            own = {sample.name: METRICS[sample.name].labels for sample in samples}
            found[rank] = {(s.name, *(s.labels[name] for name in own[s.name])): s.value for s in samples}
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsal, Path]:
    """Four ranks with a window, which end in order."""
    folder = tmp_path_factory.mktemp("job")
    return play(folder, "runs"), folder


def test_every_rank_leaves_a_file_that_says_it_ended(job: tuple[Rehearsal, Path]) -> None:
    """With what it registered and agreed on; nothing else is in the directory."""
    run, folder = job
    run.assert_good()
    found = files(folder)
    assert sorted(found) == [str(rank) for rank in range(RANKS)]
    for values in found.values():
        assert values["tracehook_registrations_made_total", "window"] == 1
        assert values["tracehook_registrations_made_total", "local"] > 0
        assert values["tracehook_registration_seconds_total", "window", "register"] > 0
        assert values["tracehook_agreements_total", "reached"] >= 1
        assert values[("tracehook_ended_timestamp_seconds",)] >= values[("tracehook_written_timestamp_seconds",)] - 60
        assert values[("tracehook_log_written_bytes_total",)] > 1000
        assert sum(value for key, value in values.items() if key[0] == "tracehook_ranks_disagreed_total") == 0
    assert {path.suffix for path in (folder / "metrics").iterdir()} == {".prom"}


def test_no_two_processes_have_one_series(job: tuple[Rehearsal, Path]) -> None:
    """And all say the same of a metric: a textfile collector takes no file of a metric with two meanings."""
    _, folder = job
    texts = [path.read_text() for path in (folder / "metrics").glob("*.prom")]
    lines = [line.rpartition(" ")[0] for text in texts for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    meanings = {line for text in texts for line in text.splitlines() if line.startswith("#")}
    assert len(meanings) == len({tuple(line.split()[1:3]) for line in meanings})
    for metric in text_string_to_metric_families("".join(texts[:1])):
        assert all(set(COMMON) <= set(sample.labels) for sample in metric.samples)


def test_promtool_finds_nothing_to_say(job: tuple[Rehearsal, Path]) -> None:
    """Prometheus' own linter."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    for path in (job[1] / "metrics").glob("*.prom"):
        done = subprocess.run([promtool, "check", "metrics"], input=path.read_bytes(), capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_disagreement_is_counted(tmp_path: Path) -> None:
    """On every rank, in the process and in its last file."""
    run = play(tmp_path, "mismatch")
    for rank, values in files(tmp_path).items():
        assert run.facts(int(rank))["error"] == "RegistrationMismatch", run.output
        assert run.facts(int(rank))["disagreed"]["windows"] == 1
        assert values["tracehook_ranks_disagreed_total", "windows"] == 1
        assert values["tracehook_agreements_total", "mismatch"] == 1
    assert len(files(tmp_path)) == RANKS


@pytest.mark.parametrize("way", ["before", "after"])
def test_a_forked_child(tmp_path: Path, way: str) -> None:
    """One that brings CUDA up has a file of its own; one that cannot use CUDA touches no file."""
    metrics = tmp_path / "metrics"
    run = rehearse("forks.py", way, log=tmp_path / "log", timeout=40, env={"SYMM_REGISTER_METRICS": str(metrics)})
    assert set(run.facts()["statuses"]) == {0}, run.output
    texts = [path.read_text() for path in metrics.iterdir()]
    assert len(texts) == (2 if way == "before" else 1)
    pids = {
        sample.labels["pid"] for text in texts for m in text_string_to_metric_families(text) for sample in m.samples
    }
    assert len(pids) == len(texts)


# --- trouble with the directory ---


def _run(metrics: Path | str, code: str = "import torch; print('done')") -> list[str]:
    """Run code with metrics, which must do what it does without; return what it said on stderr."""
    run = forked(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_METRICS": str(metrics)})
    assert (run.status, run.out) == (0, "done\n"), run.output
    return run.err.splitlines()


@pytest.mark.parametrize("place", ["/proc", "/proc/none", "{file}", "{file}/below"])
def test_a_directory_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    """One line says so, and the job goes on."""
    (tmp_path / "file").touch()
    lines = _run(place.format(file=tmp_path / "file"))
    assert len(lines) == 1, lines
    assert lines[0].startswith("tracehook: no metrics for now, ")


def test_a_job_does_not_import_the_package(tmp_path: Path) -> None:
    """A server decides later how its own metrics are shared by its processes, and prometheus_client at its import."""
    code = "import sys, torch; print('done'); assert 'prometheus_client' not in sys.modules"
    assert _run(tmp_path, code) == []
    assert len(list(tmp_path.glob("*.prom"))) == 1

"""Logs in a folder for each host: all commands find them, and say the same as of one folder."""

import shutil
from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.exported import events, in_logs
from support.parted import Program

from audit.goldens import DIRECTORY, unpack
from tracehook.audit.export import export
from tracehook.log.directory import find_logs
from tracehook.log.folders import folders_in, of_this_host
from tracehook.log.growing import GrowingDirectory
from tracehook.settings import from_environment


def by_rank(logs: Path, into: Path) -> Path:
    """Move the files of each rank into a folder of its own."""
    for file in list(logs.iterdir()):
        rank = next((part for part in file.name.split(".") if part.startswith("rank")), "")
        (into / rank).mkdir(parents=True, exist_ok=True)
        shutil.move(file, into / rank / file.name)
    return into


def test_the_name_of_the_host_is_put_into_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot stand in a name is left out of it."""
    monkeypatch.setattr("socket.gethostname", lambda: "node/7.cluster")
    assert of_this_host(Path("/logs/%h")) == Path("/logs/node_7_cluster")
    settings, problems = from_environment({"SYMM_REGISTER_LOG": "/logs/%h"})
    assert (settings.log, problems) == (Path("/logs/node_7_cluster"), [])


def test_hidden_folders_and_links_are_not_looked_into(tmp_path: Path) -> None:
    """Nor files."""
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").touch()
    assert folders_in(tmp_path) == [tmp_path, tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("name", ["clean", "rank-failed-killed", "ranks-hung"])
def test_the_audit_says_the_same(tmp_path: Path, name: str) -> None:
    """Rings are found beside their logs."""
    flat = unpack(DIRECTORY / name, tmp_path)
    wanted = Audit(flat)
    found = Audit(by_rank(unpack(DIRECTORY / name, tmp_path / "again"), tmp_path / "hosts" / name))
    assert (found.status, found.out) == (wanted.status, wanted.out.replace(str(flat), str(tmp_path / "hosts" / name)))


def test_two_hosts_may_have_files_of_one_name(tmp_path: Path) -> None:
    """As containers do, which call all hosts alike."""
    for rank in range(2):
        (tmp_path / f"host{rank}").mkdir()
        program = Program(tmp_path / f"host{rank}", rank=rank, ranks=2)
        program.join(1)
        program.free(program.alloc())
        program.leave(1)
        program.end()
        (log,) = (tmp_path / f"host{rank}").iterdir()
        log.rename(log.with_name("job.rank-.h.1.jsonl"))
    assert len(find_logs(tmp_path, tmp_path).logs) == 2
    Audit(tmp_path).expect(CLEAN, "Clean: 2 registrations")


def test_a_running_job_is_read_from_all_folders(tmp_path: Path) -> None:
    """What `tracehook watch` looks at; a folder that goes takes its logs with it."""
    for rank in range(2):
        (tmp_path / f"host{rank}").mkdir()
        Program(tmp_path / f"host{rank}", rank=rank, ranks=2).alloc()
    growing = GrowingDirectory(tmp_path)
    growing.look()
    found = dict(filter(None, [growing.read_next(), growing.read_next()]))
    assert sorted(found) == ["host0/job.rank0.h.7.jsonl", "host1/job.rank1.h.8.jsonl"]
    assert [len(lines) for lines in found.values()] == [2, 2]
    shutil.rmtree(tmp_path / "host0")
    growing.look()
    assert list(growing.tails) == ["host1/job.rank1.h.8.jsonl"]


def test_an_export_has_the_logs_of_all_folders(tmp_path: Path) -> None:
    """Each event once."""
    logs = by_rank(unpack(DIRECTORY / "clean", tmp_path), tmp_path / "hosts")
    export(logs, tmp_path / "out")
    assert events(tmp_path / "out") == in_logs(logs)

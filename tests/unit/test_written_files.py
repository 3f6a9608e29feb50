"""The commands that write a file: what they say when they cannot, and what they leave behind."""

import json
import sys

import pytest
from typer.testing import CliRunner

pytest.importorskip("duckdb")
pytest.importorskip("perfetto")

from tracehook.commands import app
from tracehook.views.output import replacing

LINES = (
    {"event": "trace.begin", "schema": "1.2", "t_ns": 1_000, "rank": 0, "pid": 10, "host": "a"},
    {"event": "segment.alloc", "seq": 1, "t_ns": 2_000, "device": 0, "segment": 1, "addr": "0x7f00", "size": 512},
)


@pytest.fixture
def log(tmp_path):
    """A directory with the log of one process."""
    directory = tmp_path / "logs"
    directory.mkdir()
    directory.joinpath("job.rank0.a.10.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return directory


@pytest.mark.parametrize("command", ["timeline", "report"])
class TestCommand:
    """What both commands that write a file have in common."""

    def test_no_logs(self, command, tmp_path):
        """A directory without logs is one line, status 2, and no file."""
        result = CliRunner().invoke(app, [command, str(tmp_path), "-o", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert result.stderr.strip().splitlines() == [
            f"tracehook {command}: {tmp_path}: no .jsonl log in it; was SYMM_REGISTER_HOOK=1 set, and torch imported?"
        ]
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_read(self, command, log, tmp_path):
        """Another directory, and a job that is not in it: one line, status 2, and no file."""
        for what in ([str(tmp_path / "none")], [str(log), "--job", "other"]):
            result = CliRunner().invoke(app, [command, *what, "-o", str(tmp_path / "out")])
            assert result.exit_code == 2
            (line,) = result.stderr.strip().splitlines()
            assert line.startswith(f"tracehook {command}: ")
            assert not (tmp_path / "out").exists()

    def test_a_place_that_cannot_be_written(self, command, log, tmp_path):
        """It is said in one line, with the path that was given."""
        for target, why in (("absent/out", "No such file or directory"), ("logs", "is there, and is no regular file")):
            result = CliRunner().invoke(app, [command, str(log), "-o", str(tmp_path / target)])
            assert result.exit_code == 2
            assert result.stderr.strip() == f"tracehook {command}: {tmp_path / target}: {why}"

    def test_a_file_is_replaced(self, command, log, tmp_path):
        """The new one takes the old one's place, and nothing else is left."""
        (tmp_path / "out").write_text("old")
        result = CliRunner().invoke(app, [command, str(log), "-o", str(tmp_path / "out")])
        assert result.exit_code == 0, result.output
        assert (tmp_path / "out").read_bytes().startswith(b"<!DOCTYPE html>" if command == "report" else b"\n")
        assert " MB" in result.stdout or command == "timeline"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["logs", "out"]


class _NotInstalled:
    def find_spec(self, name, *_):
        if name == "perfetto":
            raise ModuleNotFoundError("No module named 'perfetto'", name=name)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    """Without Perfetto's package, one line says how to get it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("packets", "timeline"):
        monkeypatch.delitem(sys.modules, f"tracehook.views.{name}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_NotInstalled(), *sys.meta_path])
    result = CliRunner().invoke(app, ["timeline", str(tmp_path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.strip() == "tracehook timeline: needs perfetto: pip install 'tracehook[audit]'"


def test_a_failure_leaves_the_old_file(tmp_path):
    """What was there stays if the work is cut short."""
    target = tmp_path / "out"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(target) as file:
        file.write(bytes(1 // 0))
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert target.read_text() == "old"


def test_a_launcher_has_no_track_unless_asked_for(log, tmp_path):
    """It has neither a rank nor a device, so there is nothing to draw."""
    line = {"event": "trace.begin", "schema": "1.2", "t_ns": 1_000, "rank": None, "pid": 9, "host": "a"}
    log.joinpath("job.rank-.a.9.jsonl").write_text(json.dumps(line) + "\n")
    for options, count in (((), "1 processes"), (("--all",), "2 processes")):
        out = CliRunner().invoke(app, ["timeline", str(log), "-o", str(tmp_path / "out"), *options])
        assert f": {count}, " in out.stdout, out.output

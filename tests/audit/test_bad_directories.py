"""What lies in a directory beside logs, or in their place: a line that names it and the documented status."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, UNUSABLE, Audit, change, insert, log_of
from support.processes import SCRIPTS, run


def test_nothing_to_read(tmp_path: Path) -> None:
    """No directory, a file in its place, an empty one: status 2, and what was expected."""
    Audit(tmp_path / "no").expect(UNUSABLE, str(tmp_path / "no"), "not a directory", "SYMM_REGISTER_LOG")
    file = tmp_path / "file"
    file.write_text("text")
    Audit(file).expect(UNUSABLE, str(file), "not a directory")
    empty = tmp_path / "empty"
    empty.mkdir()
    Audit(empty).expect(UNUSABLE, str(empty), "no .jsonl log in it", "SYMM_REGISTER_HOOK=1")
    Audit(tmp_path / ("x" * 300)).expect(UNUSABLE)


@pytest.mark.parametrize(
    "name",
    ["it's", "a b", "50%", "{0}{x}", "Straße 東京", "-dash", "[red]", "*", "a=b", "event=x", "~", 'q"q', "back\\slash"],
)
def test_name_of_the_directory(logs: Path, tmp_path: Path, name: str) -> None:
    """A directory may be called anything."""
    directory = tmp_path / name
    logs.rename(directory)
    Audit(directory).expect(CLEAN, "Clean: ")
    for file in directory.iterdir():
        file.unlink()
    Audit(directory).expect(UNUSABLE, name)


def test_name_that_is_no_text(logs: Path, tmp_path: Path) -> None:
    """Names need not be UTF-8."""
    directory = tmp_path / os.fsdecode(b"se\xf1or")
    logs.rename(directory)
    file = log_of(directory)
    file.rename(directory / os.fsdecode(b"clean.rank1.se\xf1or.1.jsonl"))
    (directory / os.fsdecode(b"\xff.png")).write_bytes(b"\x89PNG")
    change(directory / os.fsdecode(b"clean.rank1.se\xf1or.1.jsonl"), insert(b"damage"))
    finished = run([SCRIPTS / "tracehook", "audit", directory])
    assert finished.status == FINDINGS, finished.output
    assert "Traceback" not in finished.output
    assert "1 line" in finished.out


def test_directory_with_a_dash(logs: Path) -> None:
    """A name that looks like an option comes after `--`, as everywhere."""
    logs.rename(logs.parent / "--json")
    finished = run([SCRIPTS / "tracehook", "audit", "--", "--json"], cwd=logs.parent)
    assert finished.status == CLEAN, finished.output
    assert "Clean: " in finished.out


@pytest.mark.parametrize(
    "name", ["a[1].jsonl", "*.jsonl", "?.jsonl", "it's.jsonl", "{a,b}.jsonl", "**.jsonl", "-.jsonl"]
)
def test_name_of_a_file(logs: Path, name: str) -> None:
    """A file is read as that file, also if its name is a pattern that others match."""
    for decoy in ("a1.jsonl", "a.jsonl", "b.jsonl", "x.jsonl"):
        (logs / decoy).write_text("no log\n")
    log_of(logs).rename(logs / name)
    found = Audit(logs, "--json").expect(CLEAN)
    looked = json.loads(found.out)["looked"]
    assert (looked["processes"], looked["ranks"], looked["events"]) == (2, 2, _lines(logs))


def _lines(logs: Path) -> int:
    lines = [file.read_bytes().splitlines() for file in logs.glob("*.jsonl")]
    return sum(len(each) for each in lines if len(each) > 1)


def test_thousands_of_files(logs: Path) -> None:
    """Thousands of foreign files are left out, and a number of them named is enough."""
    for number in range(3000):
        (logs / f"{number}.txt").write_text("x")
        (logs / f"{number}.jsonl").write_text('{"no": "log"}\n')
    Audit(logs).expect(CLEAN, "skipped: ", "Clean: ")


FOREIGN: dict[str, tuple[str, bytes]] = {
    "text": ("notes.txt", b"text"),
    "text as a log": ("notes.jsonl", b"text\n"),
    "binary": ("core", bytes(range(256)) * 100),
    "png": ("picture.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100),
    "another program's": ("other.jsonl", b'{"time": 1, "level": "info", "event": "started"}\n' * 10),
    "a list": ("list.jsonl", b"[1, 2]\n"),
    "a number": ("number.jsonl", b"1\n"),
    "empty": ("empty.jsonl", b""),
    "nested": ("nested.jsonl", b"[" * 200_000 + b"\n"),
    "one line without an end": ("long.jsonl", b"x" * (3 << 20)),
    "a line in the middle": ("middle.jsonl", b'{"event":"hook.enable","seq":1,"t_ns":1}\n'),
    "not gzip": ("other.jsonl.gz", b"not gzip at all"),
    "gzip of something": ("other.jsonl.gz", gzip.compress(b"something")),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_file(logs: Path, tmp_path: Path, kind: str) -> None:
    """A file of another kind is named and left out; alone it is no directory of logs."""
    name, content = FOREIGN[kind]
    (logs / name).write_bytes(content)
    Audit(logs).expect(CLEAN, "skipped: ", name)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / name).write_bytes(content)
    Audit(alone).expect(UNUSABLE, name)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.ring", "clean.rank1.vm.1.ring"])
@pytest.mark.parametrize("kind", ["directory", "dangling link", "pipe", "link to itself"])
def test_no_regular_file(logs: Path, name: str, kind: str) -> None:
    """A directory, a link that leads nowhere or a pipe is named, and nobody waits for a pipe's writer."""
    _make_odd(logs / name, kind)
    Audit(logs).expect(FINDINGS, name, "damaged-file")


@pytest.mark.parametrize("kind", ["directory", "dangling link", "pipe"])
def test_no_regular_ring(logs: Path, kind: str) -> None:
    """The same for the ring of a log that is there."""
    _make_odd(log_of(logs).with_suffix(".ring"), kind)
    found = Audit(logs)
    assert found.status in (CLEAN, FINDINGS), found
    assert found.status == (CLEAN if kind == "dangling link" else FINDINGS), found


def _make_odd(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "link to itself" else "/nowhere/at/all")


def test_unreadable_file(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be read is named with the reason."""
    secret, whole = log_of(logs), Path.open

    def refuse(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == secret:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    Audit(logs).expect(FINDINGS, secret.name, "Permission denied", "missing-ranks")

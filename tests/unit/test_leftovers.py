"""What killed jobs left in shared memory goes with a later job; a file of anybody else stays, whatever its name."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracehook.agreement import leftovers, mailbox

OURS = f"{leftovers.PREFIX}{'0123456789abcdef' * 2}"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder that is the shared memory."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    return tmp_path


def _old(path: Path, data: bytes = leftovers.MARK) -> Path:
    path.write_bytes(data)
    os.utime(path, (1.0, 1.0))
    return path


@pytest.fixture
def left(place: Path) -> Iterator[Path]:
    """Return a file that looks like one of a job that was killed ten minutes ago."""
    kept = mailbox.HostMailbox("a sequence", [0, 1], 0)  # rank 1 never comes
    (path,) = place.iterdir()
    os.utime(path, (1.0, 1.0))
    yield path
    del kept


def test_what_a_killed_job_left_goes(left):
    """The mailbox of a host."""
    leftovers.remove()
    assert not left.exists()


@pytest.mark.parametrize("why", ["young", "locked", "of another user", "without the mark", "short"])
def test_what_may_not_be_left_stays(left, monkeypatch, why):
    """One sign of life is enough, and one sign that it is somebody else's."""
    with left.open("rb+") as file:
        if why == "locked":
            fcntl.flock(file, fcntl.LOCK_SH)
        elif why == "without the mark":
            file.write(b"{}")
        elif why == "short":
            file.truncate(7)
        file.flush()
        if why != "young":
            os.utime(left, (1.0, 1.0))
        else:
            os.utime(left)
        if why == "of another user":
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        leftovers.remove()
    assert left.exists()


@pytest.mark.parametrize(
    "name",
    [
        "tracehook-results.json",
        "tracehook-alarms-of-mine",
        f"{OURS}.ring",
        f"{OURS}f",
        OURS[:-1],
        OURS.upper(),
        f"tracehook-of-mine-{'0' * 32}",
    ],
)
def test_a_file_of_the_user_stays(place, name):
    """A name that only begins like ours is the user's, also with the same first bytes."""
    path = _old(place / name)
    leftovers.remove()
    assert path.exists()


def test_what_is_no_file_stays(place, tmp_path_factory):
    """A folder, a pipe, and a link with what it leads to."""
    target = _old(tmp_path_factory.mktemp("elsewhere") / OURS)
    names = [f"{OURS[:-1]}{last}" for last in "abc"]
    (place / names[0]).mkdir()
    os.mkfifo(place / names[1])
    (place / names[2]).symlink_to(target)
    for name in names:
        os.utime(place / name, (1.0, 1.0), follow_symlinks=False)
    leftovers.remove()
    assert sorted(path.name for path in place.iterdir()) == names
    assert target.exists()


def test_no_shared_memory_is_no_trouble(place, monkeypatch):
    """Then there is nothing to remove."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", place / "absent")
    leftovers.remove()

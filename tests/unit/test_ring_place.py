"""Where the ring lies: never where the allocator's callback would have to wait for a file server."""

import json
import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest
from support.processes import python

from tracehook.log import reader, ring_place
from tracehook.log.growing import GrowingDirectory

MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 27 0:40 / {folder} rw,relatime shared:7 - {kind} server:/export rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of mounts, to be written, which is taken for that of this process."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(ring_place, "_MOUNTS", table)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "local"))
    (tmp_path / "local").mkdir()
    return table


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs"])
def test_a_local_log_has_its_ring_beside_it(tmp_path: Path, mounts: Path, kind: str) -> None:
    """Whoever copies the directory copies the ring too."""
    mounts.write_text(MOUNTS.format(folder=tmp_path, kind=kind))
    assert ring_place.choose(tmp_path / "a.rank0.jsonl") == tmp_path / "a.rank0.ring"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "cifs", "ceph", "fuse.sshfs"])
def test_a_log_on_a_network_has_its_ring_elsewhere(tmp_path: Path, mounts: Path, kind: str) -> None:
    """In a local folder, under a name of its own."""
    remote = tmp_path / "with a space"
    mounts.write_text(MOUNTS.format(folder=str(remote).replace(" ", "\\040"), kind=kind))
    made = {ring_place.choose(remote / "deep" / "a.rank0.jsonl") for _ in range(2)}
    assert len(made) == 2
    assert {path.parent for path in made} == {tmp_path / "local"}
    assert all(path.name.startswith("a.rank0.") and path.suffix == ".ring" for path in made)


@pytest.mark.parametrize("table", ["27 1 254:0 / / rw - nfs4 server:/root rw\n", None], ids=["all remote", "no table"])
def test_without_a_local_folder_the_ring_stays(tmp_path: Path, mounts: Path, table: str | None) -> None:
    """A ring that may be slow is better than none; so it is where the system does not say what it mounts."""
    if table is not None:
        mounts.write_text(table)
    assert ring_place.choose(tmp_path / "a.jsonl") == tmp_path / "a.ring"


KILLED = """import os, sys
from pathlib import Path
from tracehook.log import ring_place
ring_place._MOUNTS = Path(sys.argv[1])
import torch, tracehook
tracehook.enable()
from tracehook import _core
from tracehook.hook.service import service
service()._journal._lock.acquire()  # nothing more is written
for number in range(3):
    _core.push("hook.disable", segments=7000 + number, bytes=0)
os.kill(os.getpid(), 9)
"""


def test_the_ring_of_a_killed_process_is_found(tmp_path: Path) -> None:
    """The first line of its log names it, and every reader follows that."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "mountinfo").write_text(MOUNTS.format(folder=tmp_path / "logs", kind="nfs"))
    env = {"SYMM_REGISTER_LOG": str(tmp_path / "logs"), "TMPDIR": str(tmp_path / "local")}
    assert python(KILLED, str(tmp_path / "mountinfo"), env=env).status == -signal.SIGKILL
    (ring,) = (tmp_path / "local").glob("*.ring")
    (path,) = (tmp_path / "logs").iterdir()
    assert json.loads(path.read_bytes().splitlines()[0])["ring"] == str(ring)
    (log,) = reader.read_directory(tmp_path / "logs")
    assert [event["segments"] for event in log.events if event["event"] == "hook.disable"] == [7000, 7001, 7002]
    growing = GrowingDirectory(tmp_path / "logs")
    growing.look()
    while growing.read_next():
        pass
    found = growing.ring_heads(path.name)
    assert found is not None
    assert found[0].pid == log.begin["pid"]


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"pid": 1},
        {"ring": "/etc/passwd"},
        {"ring": "/nowhere/a.ring"},
        {"ring": 7},
        {"ring": "\0"},
    ],
)
def test_only_the_ring_of_that_process_is_read(tmp_path: Path, changes: dict[str, object]) -> None:
    """A first line may name any file of any host: another one is as good as none."""
    ring = tmp_path / "a.ring"
    code = "import sys; from tracehook import _core; _core.make_process(sys.argv[1], 8); import os; print(os.getpid())"
    made = python(code, str(ring))
    begin = {"ring": str(ring), "host": socket.gethostname(), "pid": int(made.out)}
    assert ring_place.named_by(begin) == ring
    assert ring_place.named_by(begin | changes) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes into it."""
    pipe = tmp_path / "a.ring"
    os.mkfifo(pipe)
    assert ring_place.named_by({"ring": str(pipe), "host": socket.gethostname(), "pid": 1}) is None

"""The file behind a ring: readable by another process at any time."""

import textwrap

import pytest
from support.processes import python

from tracehook.log import ring

PREAMBLE = """
import os, sys
from tracehook import _core

def push(values):
    for value in values:
        _core.push("hook.enable", segments=value, bytes=value * 10)
"""


@pytest.fixture
def path(tmp_path):
    """Return where the ring lies."""
    return tmp_path / "a.ring"


@pytest.fixture
def play(path):
    """Run a script in another process: the ring with a file belongs to a process, and there is one in each."""
    return lambda script, ring=path: python(PREAMBLE + textwrap.dedent(script), str(ring))


def test_the_file_of_a_full_ring_is_read(path, play):
    """After the ring went round, the file still gives the undrained events in order, and what was lost."""
    done = play("""
        _core.make_process(sys.argv[1], 8)
        push(range(1, 7))
        _core.mark_drained(5)
        push(range(7, 20))
    """)
    assert (done.status, done.err) == (0, "")
    read = ring.read_file(path)
    assert [record.seq for record in read.records] == list(range(6, 14))
    assert read.header.dropped == 6


def test_the_file_is_removed_when_asked(tmp_path, play):
    """Once everything stands in the log, the file goes; what is pushed later is kept in memory and harms nothing."""
    done = play("""
        _core.make_process(sys.argv[1], 8)
        push([1])
        _core.remove_ring_file()
        _core.remove_ring_file()
        push([2])
        assert len(_core.peek(8)) == 2 * _core.RECORD_BYTES
    """)
    assert (done.status, done.err, list(tmp_path.iterdir())) == (0, "", [])


def test_an_existing_file_is_left_alone(path, play):
    """A file of that name belongs to somebody else; the ring stays in memory and says why."""
    path.write_bytes(b"precious")
    done = play("_core.make_process(sys.argv[1], 8); push([1]); print(_core.ring_error())")
    assert (done.out, done.err) == (f"{path}: File exists\n", "")
    assert path.read_bytes() == b"precious"


def test_a_full_disk_shows_at_the_start(tmp_path, play):
    """The blocks are reserved at once: if there is no room the ring lives in memory and no half file stays."""
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        _core.make_process(sys.argv[1], 1024)
        push([1, 2])
        print(_core.ring_error(), len(_core.peek(8)) // _core.RECORD_BYTES)
    """
    done = play(script)
    assert (done.out, done.err) == (f"{tmp_path}/a.ring: File too large 2\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_writes_its_own_thread(play):
    """The thread of an event in a forked child is the child's, not the one it was forked from."""
    done = play("""
        import struct, threading
        _core.make_process("", 8)
        push([1])
        child = os.fork()
        if child == 0:
            _core.make_process("", 8)
            push([2])
            thread = struct.unpack_from("<I", _core.peek(1), 32)[0]
            os._exit(0 if thread == threading.get_native_id() else 3)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert (done.status, done.err) == (0, "")


def test_a_record_that_is_overwritten_while_it_is_read_is_left_out(tmp_path, monkeypatch, path, play):
    """A process that runs writes on: what it took out meanwhile is in its log, and another may be in its place."""
    play("_core.make_process(sys.argv[1], 4); push(range(4))")
    before = path.read_bytes()
    later = tmp_path / "b.ring"
    play("_core.make_process(sys.argv[1], 4); push(range(4)); _core.mark_drained(2); push(range(2))", later)
    after = later.read_bytes()
    header_in = ring.header_in

    def then_the_process_goes_on(path, data):
        header = header_in(path, data)
        path.write_bytes(after)
        return header

    path.write_bytes(before)
    monkeypatch.setattr(ring, "header_in", then_the_process_goes_on)
    read = ring.read_file(path)
    assert [record.seq for record in read.records] == [3, 4]
    assert read.header.drained == 2


@pytest.mark.parametrize("data", [b"", bytes(40), bytes(8192)])
def test_a_file_that_nothing_was_written_into_is_unborn(tmp_path, data):
    """A process that was killed while it made its ring left nothing to read, which is no damage."""
    path = tmp_path / "unborn.ring"
    path.write_bytes(data)
    for read in (ring.read_file, ring.read_header):
        with pytest.raises(ring.UnbornRing, match=r"unborn\.ring: nothing was written into this ring$"):
            read(path)

"""A forked child abandons the registrar: every entry returns at once and calls nothing."""

import textwrap

import pytest
from support.processes import python

X, Y = 1, 2
SIZE = 4096

ENTRIES = {
    "alloc": lambda harness: harness.alloc(0, 0x20000, SIZE),
    "free": lambda harness: harness.free(0, 0x10000, SIZE),
    "unknown free": lambda harness: harness.free(0, 0x70000, SIZE),
    "adopt": lambda harness: harness.adopt(0, 0x30000, SIZE),
    "create": lambda harness: harness.create(Y),
    "create a child": lambda harness: harness.create(Y, parent=X),
    "collective": lambda harness: harness.collective(X),
    "poke": lambda harness: harness.poke(X),
    "retire": lambda harness: harness.retire(X),
    "kill": lambda harness: harness.kill(X),
    "off": lambda harness: harness.set_registering(False),
    "segments": lambda harness: harness.segments(),
    "communicators": lambda harness: harness.communicators(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_returns_while_the_gate_is_held(harness, calls_of, events, busy_gate, background, entry):
    """The holder of the gate may be a thread that does not exist in this process, so nobody waits for it."""
    harness.create(X)
    harness.alloc(0, 0x10000, SIZE)
    with busy_gate(X):
        harness.abandon()
        seen = (calls_of(X), calls_of(Y), events())
        assert not background(ENTRIES[entry], harness).result()
        assert (calls_of(X), calls_of(Y), events()) == seen


def test_a_forked_child_abandons_by_itself():
    """In a child forked while other threads are at work, every call returns, and the ring is left to the parent."""
    script = """
        import os, threading
        from tracehook import _core

        _core.make_process("", 1 << 12)
        stop = threading.Event()

        def churn(device):
            while not stop.is_set():
                for i in range(50):
                    _core.inject("alloc", device, 4096 * (i + 1), 4096)
                for i in range(50):
                    _core.inject("free", device, 4096 * (i + 1), 4096)
                _core.mark_drained(len(_core.peek(4096)) // _core.RECORD_BYTES)

        thread = threading.Thread(target=churn, args=(0,))
        thread.start()
        codes = []
        for _ in range(100):
            child = os.fork()
            if child == 0:
                _core.inject("alloc", 1, 4096, 4096)
                _core.inject("free", 1, 4096, 4096)
                _core.set_registering(False)
                quiet = _core.segments() == [] and _core.totals().bytes == 0 and _core.communicators() == []
                os._exit(0 if quiet and _core.abandoned() else 1)
            codes.append(os.waitpid(child, 0)[1])
        stop.set()
        thread.join()
        assert codes == [0] * 100, codes
        assert not _core.abandoned()
    """
    done = python(textwrap.dedent(script))
    assert (done.status, done.err) == (0, "")


def test_a_forked_child_leaves_the_ring_alone(tmp_path):
    """The file is shared memory of the parent's: the child neither writes into it, takes from it nor removes it."""
    script = """
        import os, sys
        from tracehook import _core

        _core.make_process(sys.argv[1], 16)
        for number in range(4):
            _core.push("hook.enable", segments=number, bytes=0)
        before = open(sys.argv[1], "rb").read()
        child = os.fork()
        if child == 0:
            _core.push("hook.disable", segments=0, bytes=0)
            _core.push("peer.ready", peer_life=1, peer=0)
            _core.mark_drained(1)
            _core.let_go(1)
            _core.remove_ring_file()
            os._exit(len(_core.peek(16)))
        assert os.waitpid(child, 0)[1] == 0
        assert open(sys.argv[1], "rb").read() == before
        assert len(_core.peek(16)) == 4 * _core.RECORD_BYTES
    """
    done = python(textwrap.dedent(script), str(tmp_path / "a.ring"))
    assert (done.status, done.err) == (0, "")

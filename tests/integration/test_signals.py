"""A signal that ends the program ends it also where tracehook notes in the ring which one it was."""

import os
import pty
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from support.processes import forked, python

# A signal that is swallowed lets the program come to its end.
PROGRAM = """
    import ctypes, os, signal, struct, sys
    import torch
    from tracehook import _core

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does
    _core.make_process(sys.argv[1], 64)
    _core.note_signals()
"""
WAITS = """
    print("ready", flush=True)
    signal.pause()
"""
# As the kernel sends it: number, no error, the code, and what stands there for that code.
SENT = """
    number, code = map(int, sys.argv[2:])
    info = struct.pack("<iii", number, 0, code).ljust(128, b"\\0")
    SYS_rt_sigqueueinfo = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
    ctypes.CDLL(None).syscall(SYS_rt_sigqueueinfo, os.getpid(), number, info)
"""
SI_KERNEL, POLL_IN, BUS_MCEERR_AO = 0x80, 1, 5


def _text(last: str) -> str:
    return textwrap.dedent(PROGRAM) + textwrap.dedent(last)


def test_a_terminal_that_hangs_up_ends_the_program(tmp_path: Path) -> None:
    """As `ssh -t` and `kubectl exec -it` do: then nobody would end it, and it would keep its GPUs."""
    program, terminal = pty.fork()
    if program == 0:
        os.execv(sys.executable, [sys.executable, "-c", _text(WAITS), str(tmp_path / "ring")])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == -signal.SIGHUP


@pytest.mark.parametrize(
    ("number", "last", "code"),
    [
        (signal.SIGHUP, SENT, SI_KERNEL),
        (signal.SIGTERM, SENT, POLL_IN),
        (signal.SIGABRT, SENT, SI_KERNEL),
        (signal.SIGBUS, SENT, BUS_MCEERR_AO),
        (signal.SIGSEGV, "ctypes.string_at(8)", 0),  # a fault, which comes again at its own instruction
    ],
)
def test_what_the_kernel_sends_ends_the_program(tmp_path: Path, number: signal.Signals, last: str, code: int) -> None:
    """Nothing would raise it again: only a fault comes again by itself."""
    assert forked(_text(last), str(tmp_path / "ring"), str(int(number)), str(code), timeout=100).status == -number


def test_a_signal_that_the_program_blocks_waits_for_the_program(tmp_path: Path) -> None:
    """A program may wait for its signals in one place (`sigwait`): the threads of tracehook are no way around that."""
    script = """
        import os, signal, threading
        import torch
        from tracehook.hook import background
        from tracehook.log import threads

        mine = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
        thread = background.start(background, threading.Event().wait, "tracehook-waits")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, mine) == set()
        assert {each.name for each in threads.living()} >= {"tracehook-log", "tracehook-metrics", thread.name}
        for number in mine:
            os.kill(os.getpid(), number)
        print({signal.sigwait(mine) for _ in mine} == mine, flush=True)
        os._exit(0)
    """
    settings = {"HOOK": "1", "LOG": str(tmp_path / "logs"), "METRICS": str(tmp_path / "metrics")}
    # python() allows OpenBLAS one thread: others would take the signals.
    done = python(textwrap.dedent(script), env={f"SYMM_REGISTER_{name}": value for name, value in settings.items()})
    assert (done.status, done.out, done.err) == (0, "True\n", "")


def test_the_program_may_have_its_stacks_written_at_any_signal_of_its_own(tmp_path: Path) -> None:
    """By faulthandler, which tracehook uses, too, and which keeps one registration for each signal."""
    script = """
        import faulthandler, os, signal, sys
        import torch

        for number in (signal.SIGUSR1, signal.SIGUSR2, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
            with open(sys.argv[1], "w+") as file:
                faulthandler.register(number, file=file)
                os.kill(os.getpid(), number)
                file.seek(0)
                assert "most recent call first" in file.read(), number
                faulthandler.unregister(number)
    """
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path / "logs")}
    done = python(textwrap.dedent(script), str(tmp_path / "stacks"), env=env)
    assert (done.status, done.err) == (0, "")

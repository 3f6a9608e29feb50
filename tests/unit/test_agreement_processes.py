"""Ranks that are processes, over a TCPStore: the end of the store, an interrupt, and an exit."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import python
from support.rehearsal import rehearse

Play = Callable[[str], Any]

# Every process is forked from one that has imported torch and has no thread, because importing it takes seconds.
PRELUDE = """
    import json, os, select, signal, sys, time
    import torch.distributed as dist
    from tracehook.agreement import agreement, store_worker
    from tracehook.agreement.agreement import Agreement
    from tracehook.agreement.store_session import StoreSessions

    # A shell starts its background jobs with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    class Process:
        def __init__(self, function, *given):
            self.reader, writer = os.pipe()
            self.pid = os.fork()
            if self.pid == 0:
                self.say = lambda value: os.write(writer, json.dumps(value).encode() + b"\\n")
                try:
                    function(self.say, *given)
                except BaseException as problem:
                    self.say([type(problem).__name__, str(problem)])
                os._exit(0)
            os.close(writer)
            self.lines = os.fdopen(self.reader, "rb", buffering=0)  # select() sees no line that was read ahead

        def heard(self):
            ready, _, _ = select.select([self.lines], [], [], 80)
            return json.loads(self.lines.readline()) if ready else "nothing heard"

        def send(self, number):
            os.kill(self.pid, number)

    def serve(say):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        say(store.port)
        time.sleep(100)

    def attend(say, port, rank, ranks, timeout):
        own = dist.TCPStore("127.0.0.1", port, is_master=False)
        member = Agreement(StoreSessions().at(own).workers, "c/windows", rank, ranks, "communicator c")
        say("begins")
        begin = time.monotonic()
        try:
            member.compare("windows", ["a"], timeout)
            say("agreed")
        except Exception as problem:
            missing = getattr(problem, "missing", None)
            say([type(problem).__name__, getattr(problem, "text", str(problem)), missing, time.monotonic() - begin])

    def has_come(port, rank):
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        end = time.monotonic() + 30
        while not store.check([f"tracehook/c/windows/1/{rank}"]) and time.monotonic() < end:
            time.sleep(0.005)

    server = Process(serve)
    port = server.heard()
    started = [server]

    def tell(value):
        print(json.dumps(value))
"""

EPILOGUE = """
    for process in started:
        process.send(signal.SIGKILL)
        os.waitpid(process.pid, 0)
"""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return what runs a job of processes, and returns what it tells."""

    def run(body: str) -> Any:
        job = tmp_path / "job.py"
        job.write_text("\n".join(textwrap.dedent(part) for part in (PRELUDE, body, EPILOGUE)))
        done = rehearse(job, timeout=100)
        assert done.status == 0, done.output
        return json.loads(done.finished.out)

    return run


def test_the_end_of_the_server_is_told_in_one_line(play: Play) -> None:
    """Ranks whose store is killed while they wait say so at once, in one line."""
    told = play("""
        ranks = [Process(attend, port, rank, 3, 70) for rank in (0, 1)]
        started += ranks
        for rank in (0, 1):
            has_come(port, rank)
        server.send(signal.SIGKILL)
        tell([[rank.heard() for _ in range(2)][-1] for rank in ranks])
    """)
    assert [outcome[0] for outcome in told] == ["RegistrationError"] * 2
    for _, text, _, taken in told:
        assert text.startswith("communicator c: the c10d store failed at 'windows' (DistNetworkError: ")
        assert text.endswith(
            "); on this rank nothing was registered or called. "
            "The process that holds the store (rank 0 of the job) has likely ended"
        )
        assert "\n" not in text
        assert taken < 35


@pytest.mark.parametrize("interrupted", [0, 1])
def test_an_interrupt_gets_through(play: Play, interrupted: int) -> None:
    """Ctrl-C ends a wait at once, as KeyboardInterrupt, and the others hear it without waiting for their time-out."""
    told = play(f"""
        interrupted = {interrupted}

        def stay(say, *given):
            try:
                attend(say, *given)
            except KeyboardInterrupt as problem:
                say([type(problem).__name__])
                time.sleep(80)

        ranks = [Process(stay, port, rank, 3, 30) for rank in (0, 1)]
        started += ranks
        for rank in (0, 1):
            ranks[rank].heard()
            has_come(port, rank)
        begin = time.monotonic()
        ranks[interrupted].send(signal.SIGINT)
        tell([ranks[interrupted].heard(), ranks[1 - interrupted].heard(), time.monotonic() - begin])
    """)
    own, other, seconds = told
    assert (own[0], other[0]) == ("KeyboardInterrupt", "RegistrationTimeout")
    assert f"rank {interrupted} ended its wait at 'windows' by KeyboardInterrupt" in other[1]
    assert other[2] == [interrupted]
    assert seconds < 25


ENDS_WHILE_A_LINE_WAITS = """
    from datetime import timedelta
    from tracehook.agreement import rounds
    from tracehook.agreement.verdicts import Post
    import ctypes

    def server(say):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        say(store.port)
        store.wait(["exits"], timedelta(seconds=80))
        time.sleep(0.5)
        store.set("p/1/1", "what the line waited for")
        time.sleep(2.5)

    helper = Process(server)
    store = dist.TCPStore("127.0.0.1", helper.heard(), is_master=False)
    own = store_worker.StoreWorkers(store)
    own_part = rounds.RoundTopology("p", 0, 2, "communicator c", 80.0)
    task = store_worker.Task(rounds.attend(own_part, 1, Post("compare", "windows", ["a"])), 80.0)
    own._running.add(task)
    own._take().submit(task)  # and nobody waits for it, as after Ctrl-C
    time.sleep(0.3)
    store.set("exits", "")
    libc = ctypes.CDLL(None)
    libc.on_exit(libc.sleep, None)  # for as many seconds as the exit status
    sys.exit(2)
"""


def test_a_process_may_exit_while_a_line_still_waits() -> None:
    """The exit ends the wait: a thread that came back from the store after that would end the process with SIGABRT."""
    script = "\n".join(map(textwrap.dedent, (PRELUDE.split("    server = Process")[0], ENDS_WHILE_A_LINE_WAITS)))
    assert python(script, timeout=100).status == 2

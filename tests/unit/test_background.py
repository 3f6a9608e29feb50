"""The threads that tracehook starts end before the interpreter, and none begins once they have been ended."""

import textwrap

from support.processes import python

# The first exit function runs last: what is alive then may come back from the store when there is no interpreter.
FIRST = """
    import atexit, threading
    from tracehook.log import threads

    def left():
        print([thread.name for thread in threads.living()])

    atexit.register(left)
"""


def _printed(script: str) -> str:
    done = python(textwrap.dedent(FIRST) + textwrap.dedent(script), timeout=100)
    assert (done.status, done.err) == (0, "")
    return done.out


def test_a_watch_that_begins_while_exit_functions_run_ends_with_them():
    """A script ended just after its first communicator: the thread that looks for the store is still on its way."""
    script = """
        import torch.distributed as dist
        from tracehook.agreement import store_session

        store, exits = dist.HashStore(), threading.Event()

        def stores():
            if threading.current_thread() is not threading.main_thread():
                exits.wait()
            return [store]

        store_session.stores = stores
        sessions = store_session.StoreSessions()
        sessions.listen()
        atexit.register(exits.set)
    """
    assert _printed(script) == "[]\n"


def test_no_thread_begins_once_all_have_ended():
    """An exit function that the program registered before tracehook was there runs after that."""
    script = """
        def late():
            watch = Watchdog(dist.HashStore())
            watch.start()
            with StallWatch(0.01, print).watching("a registration"):
                print(watch.has_begun)

        atexit.register(late)
        import torch.distributed as dist
        from tracehook.agreement.watchdog import Watchdog
        from tracehook.symmetric_memory.stall_watch import StallWatch
    """
    assert _printed(script) == "False\n[]\n"


def test_a_round_of_an_exit_function_needs_no_thread():
    """Whether a line had a thread before or not: a program may make a collective as late as that."""
    script = """
        def steps():
            yield Operation("set", ("key", "value"))
            return RoundVerdict("ok", "")

        def late():
            print([one.carry_out(Task(steps(), 9.0)).kind for one in (used, StoreWorkers(dist.HashStore()))])

        atexit.register(late)
        import torch.distributed as dist
        from tracehook.agreement.store_worker import StoreWorkers, Task
        from tracehook.agreement.rounds import Operation
        from tracehook.agreement.verdicts import RoundVerdict

        used = StoreWorkers(dist.HashStore())
        assert used.carry_out(Task(steps(), 9.0)).kind == "ok"
    """
    assert _printed(script) == "['ok', 'ok']\n[]\n"


def test_a_forked_child_has_threads_of_its_own():
    """Those of the parent are not in it, and it does not wait for them."""
    script = """
        import os, sys
        import torch.distributed as dist
        from tracehook.hook import background
        from tracehook.agreement.watchdog import Watchdog

        Watchdog(dist.HashStore()).start()
        background.end()
        if os.fork() == 0:
            Watchdog(dist.HashStore()).start()
            sys.exit(0)
        _, status = os.wait()
        assert status == 0
    """
    assert _printed(script) == "[]\n[]\n"


def test_a_thread_that_comes_back_after_the_interpreter_does_not_end_the_process():
    """It is inside of torch's store for longer than the exit waits, and the interpreter takes long to end."""
    script = """
        import sys, time
        from datetime import timedelta
        import torch.distributed as dist
        from tracehook import _core
        from tracehook.hook import background
        from tracehook.agreement.store_worker import StoreWorkers

        _core.wait_at_end()  # as the service does first

        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(9)

        def wait_in_vain():
            waits.set()
            store.wait(["never"], timedelta(seconds=5))

        store, sys.slow, waits = dist.HashStore(), Slow(), threading.Event()
        workers = StoreWorkers(store)
        background.END = 0.1
        background.start(workers, wait_in_vain, "waits")
        waits.wait()
    """
    assert _printed(script) == "['waits']\n"

"""How long a call waits at a fence: as long as the one who raised it needs, and never for a dead communicator."""

import shutil
import subprocess
import textwrap
import threading
from pathlib import Path

import pytest
from support.processes import python

from tracehook import _core

X = 1
LONG = 100.0


@pytest.fixture
def member(harness):
    """Return a communicator that counts calls one by one."""
    harness.create(X)
    return harness.find_communicator(X)


@pytest.fixture
def call(harness, member):
    """Make a call, which may wait at a fence."""
    return lambda: harness.look(member, 0, (0, 0), (16, 16))


# A clock that jumps to the end of each wait of more than half a minute: so a limit that nobody derived is seen at once.
FAST = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

static _Atomic long jumped; // seconds

static struct timespec real(struct timespec shown) {
    shown.tv_sec -= jumped;
    return shown;
}
int clock_gettime(clockid_t clock, struct timespec* out) {
    int result = ((int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime"))(clock, out);
    out->tv_sec += clock == CLOCK_MONOTONIC ? jumped : 0;
    return result;
}
int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
    struct timespec now, then;
    clock_gettime(clock, &now);
    if (until->tv_sec > now.tv_sec + 30) {
        jumped += until->tv_sec - now.tv_sec + 1;
        return ETIMEDOUT;
    }
    then = real(*until);
    return ((int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*))dlsym(
        RTLD_NEXT, "pthread_cond_clockwait"))(cond, mutex, clock, &then);
}
int sem_clockwait(sem_t* sem, clockid_t clock, const struct timespec* until) {
    struct timespec then = real(*until);
    return ((int (*)(sem_t*, clockid_t, const struct timespec*))dlsym(RTLD_NEXT, "sem_clockwait"))(sem, clock, &then);
}
"""
PROGRAM = """
    import threading
    from tracehook import _core
    from tracehook._testing import Harness

    harness = Harness()
    harness.create(1)
    member = harness.find_communicator(1)
    member.raise_fence(_core.Fence.REGISTRATION)
    call = threading.Thread(target=harness.look, args=(member, 0, (0, 0), (16, 16)))
    call.start()
    call.join(0.5)
    print("waits" if call.is_alive() else "has passed")
    member.lower_fence(_core.Fence.REGISTRATION)
    call.join()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_call_waits_as_long_as_a_registration_takes(tmp_path: Path) -> None:
    """However long SYMM_REGISTER_TIMEOUT is: a call that passed would use a window on some ranks only."""
    source, library = tmp_path / "fast.c", tmp_path / "fast.so"
    source.write_text(FAST)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    done = python(textwrap.dedent(PROGRAM), env={"LD_PRELOAD": str(library)}, timeout=LONG)
    assert (done.out, done.status) == ("waits\n", 0), done.err


def test_a_fence_of_limited_time_falls_by_itself(member, call):
    """Who raised it may have lost the store, and lower it never."""
    member.raise_fence(_core.Fence.VERIFICATION, 0.05)
    call()
    assert member.calls == 1


def test_a_fence_that_falls_leaves_the_other_standing(member, call, background):
    """A call waits for both."""
    member.raise_fence(_core.Fence.REGISTRATION)
    member.raise_fence(_core.Fence.VERIFICATION, 0.05)
    waiting = background(call)
    threading.Event().wait(0.2)
    assert member.calls == 0
    member.lower_fence(_core.Fence.REGISTRATION)
    waiting.result()
    assert member.calls == 1


def test_the_abort_of_a_communicator_ends_every_wait(harness, member, call, background):
    """Whoever raised the fence may hang, and never lower it. NCCL's own abort may wait without end, too."""
    member.raise_fence(_core.Fence.REGISTRATION)
    waiting = background(call)
    harness.kill_around(X, waiting.result)
    harness.kill(X)

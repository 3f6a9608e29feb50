"""Communicators that torch did not make are known, followed and ended like its own."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.elf import end_relro_inside_a_page
from support.rehearsal import Rehearsal, rehearse

LIBRARY = r"""
#include <stddef.h>

typedef struct { char internal[128]; } Id;
extern int ncclGetUniqueId(Id*);
extern int ncclCommInitRank(void**, int, Id, int);
extern int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
extern int ncclCommDestroy(void*);

int own_id(Id* id) { return ncclGetUniqueId(id); }
void* own_init(int size, Id* id, int rank) {
    void* comm = NULL;
    return ncclCommInitRank(&comm, size, *id, rank) == 0 ? comm : NULL;
}
int own_sum(const void* send, void* receive, size_t count, void* comm) {
    return ncclAllReduce(send, receive, count, 7, 0, comm, NULL);
}
int own_sum_on(const void* send, void* receive, size_t count, void* comm, void* stream) {
    return ncclAllReduce(send, receive, count, 7, 0, comm, stream);
}
int own_end(void* comm) { return ncclCommDestroy(comm); }

extern int ncclGroupStart(void);
extern int ncclGroupEnd(void);
extern int ncclSend(const void*, size_t, int, int, void*, void*);
extern int ncclRecv(void*, size_t, int, int, void*, void*);
static void* late[2];
static char* memory;
static int other;
static void exchange(void) {
    ncclGroupStart();
    for (int i = 0; i < 2; ++i) {
        ncclSend(memory, 16, 7, other, late[i], NULL);
        ncclRecv(memory + 256 * (i + 1), 16, 7, other, late[i], NULL);
    }
    ncclGroupEnd();
}
void leave_late(void* one, void* two, void* buffer, int peer) {
    late[0] = one, late[1] = two, memory = buffer, other = peer;
    exchange();
}
__attribute__((destructor)) static void leave(void) {
    for (int i = 0; late[0] != NULL && i < 3; ++i) exchange();
    for (int i = 0; late[0] != NULL && i < 2; ++i) ncclCommDestroy(late[i]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that calls NCCL, whose calls are bound when it is loaded."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "own.c").write_text(LIBRARY)
    path = folder / "own.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now,-z,relro", "-o", path, folder / "own.c"], check=True)
    return path


def assert_followed(run: Rehearsal) -> None:
    """Assert that the communicator was one of two ranks, held every segment while it lived, and is gone."""
    run.assert_good()
    keys = set()
    for rank, facts in enumerate(run.told):
        (made,), (grown,), (shrunk,) = facts["made"], facts["grown"], facts["shrunk"]
        assert (made["rank"], made["size"], made["device"]) == (rank, 2, rank)
        assert made["local"] == "own"
        assert (made["held"], grown["held"]) == (facts["segments"], facts["segments"] + 1)
        assert shrunk["held"] == made["held"]
        assert (facts["sum"], facts["attached"], facts["left"]) == (3.0, False, [])
        keys.add(made["key"])
        assert len(run.events("register.local", rank)) == grown["held"]
    assert len(keys) == 1, "equal on both ranks"


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_a_communicator_of_ctypes_is_followed(tmp_path: Path, end: str) -> None:
    """Whatever ctypes looks up in NCCL is what torch calls too, so the communicator is known from its first call."""
    run = rehearse("communicators_of_others.py", "ctypes", end, log=tmp_path, ranks=2)
    assert_followed(run)
    # NCCL frees its side itself at an abort. The segment that was freed before is undone in any case.
    assert len(run.events("deregister.local")) == (2 if end == "abort" else len(run.events("register.local")))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_that_is_loaded_late_is_followed(tmp_path: Path, library: Path) -> None:
    """A library that links NCCL is met when the interpreter loads it, and its read-only table of calls is rewritten."""
    run = rehearse(
        *("communicators_of_others.py", "library", "destroy"), log=tmp_path, ranks=2, env={"LIBRARY": str(library)}
    )
    assert_followed(run)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("which", ["group", "end"])
def test_a_library_in_c_makes_and_ends_communicators(tmp_path: Path, library: Path, which: str) -> None:
    """Handles may be a function's own variables; a destructor may call NCCL when the thread's objects have gone."""
    run = rehearse("calls_from_c.py", which, log=tmp_path, ranks=2, env={"LIBRARY": str(library)}).assert_good()
    assert run.told == [{"sizes": [2, 2], "known": 3}] * 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_call_with_pythons_lock_does_not_stop_a_scope(tmp_path: Path, library: Path) -> None:
    """A call that waits for a scope's end lets go of Python's lock, which the thread that leaves the scope needs."""
    run = rehearse("calls_from_c.py", "lock", log=tmp_path, ranks=2, env={"LIBRARY": str(library)}).assert_good()
    assert run.told == [{"symmetric": [True] * 6}] * 2


# Its table of calls and its data share a page, which the dynamic linker therefore leaves writable.
WITH_DATA = r"""
extern int ncclGroupStart(void);
extern int ncclGroupEnd(void);
long counter = 1;
int call(void) { ncclGroupStart(); return ncclGroupEnd(); }
long bump(void) { return ++counter; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_data_behind_a_table_of_calls_stay_writable(tmp_path: Path) -> None:
    """Where pages are larger than the linker took them for (aarch64), the read-only part ends inside a page."""
    source, library = tmp_path / "data.c", tmp_path / "data.so"
    source.write_text(WITH_DATA)
    linked = ("-Wl,-z,now,-z,norelro", "-Wl,--no-as-needed", "-Wl,--eh-frame-hdr")
    subprocess.run(["cc", "-shared", "-fPIC", *linked, "-o", library, source], check=True)
    end_relro_inside_a_page(library)
    run = rehearse("short_relro.py", log=tmp_path / "logs", env={"LIBRARY": str(library)}).assert_good()
    assert run.facts()["bumped"] == 3
    assert run.facts()["called"] == 0


def test_a_communicator_of_own_devices_has_a_key_of_its_own(tmp_path: Path) -> None:
    """Two processes that call ncclCommInitAll alike never meet, so they have two communicators, of two ranks each."""
    run = rehearse("own_devices.py", log=tmp_path, ranks=2).assert_good()
    keys = []
    for rank in (0, 1):
        found = sorted(run.facts(rank)["keys"], key=lambda row: row[1])
        assert [row[1:] for row in found] == [[0, 2], [1, 2]]
        assert len({row[0] for row in found}) == 1, "equal for both devices"
        keys.append(found[0][0])
    assert keys[0] != keys[1]

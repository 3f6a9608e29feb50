"""Calls into NCCL that tracehook cannot follow: a system forbids it (SELinux, seccomp), or a library was preloaded."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.rehearsal import JOBS, rehearse

# A library whose name begins like torch's, with a read-only table of calls; and mprotect, which refuses that table.
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int ncclAllReduce(void) __attribute__((weak));
int probe(void) { return ncclAllReduce ? ncclAllReduce() : 0; }

int mprotect(void* address, size_t bytes, int protection) {
    Dl_info info;
    if ((protection & PROT_WRITE) && dladdr(address, &info) && strstr(info.dli_fname, "libtorch_cuda_probe")) {
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_mprotect, address, bytes, protection);
}
"""


# A tracer: it counts calls of torch, and passes them on.
TRACER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static long calls;
typedef int (*AllReduce)(const void*, void*, size_t, int, int, void*, void*);

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* comm, void* stream) {
    ++calls;
    return ((AllReduce)dlsym(RTLD_NEXT, "ncclAllReduce"))(from, to, count, type, operation, comm, stream);
}

__attribute__((destructor)) static void tell(void) { if (calls) fprintf(stderr, "tracer: %ld calls\n", calls); }
"""
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def compiled(folder: Path, name: str, source: str) -> Path:
    """Return a library that was made of that source."""
    file, library = folder / "source.c", folder / name
    file.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now,-z,relro", "-o", library, file], check=True)
    return library


def test_a_library_in_front_of_nccl_is_not_passed_by(tmp_path: Path) -> None:
    """The calls of torch go to it as without tracehook, which says in one line why it stays off."""
    library = compiled(tmp_path, "tracer.so", TRACER)
    logs, first = tmp_path / "logs", tmp_path / "first.py"
    first.write_text(f"""import os, sys
os.environ["LD_PRELOAD"] = {str(library)!r} + ":" + os.environ["LD_PRELOAD"]
os.execv(sys.executable, [sys.executable, {str(JOBS / "plain.py")!r}])
""")
    run = rehearse(first, log=logs, cold=True).assert_good()
    assert "tracer: 4 calls" in run.output
    assert list(run.facts()["status"]["reasons"]) == ["nccl_preloaded"]
    (line,) = [line for line in run.output.splitlines() if "hook.unsupported" in line]
    assert str(library) in line
    assert run.events("register.local") == []


def test_nothing_is_registered_where_calls_cannot_be_followed(tmp_path: Path) -> None:
    """One line says what was refused and what to allow; the job runs as without tracehook."""
    library = compiled(tmp_path, "libtorch_cuda_probe.so", SOURCE)
    logs = tmp_path / "logs"
    run = rehearse("plain.py", log=logs, env={"LD_PRELOAD": str(library)}, cold=True).assert_good()
    assert run.facts()["registered"] == 0
    assert run.facts()["status"]["state"] == "unsupported"
    assert run.facts()["state_then"] == "unsupported"
    assert list(run.facts()["status"]["reasons"]) == ["slots_refused"]
    (line,) = [line for line in run.output.splitlines() if "hook.unsupported" in line]
    assert "a table of calls cannot be written: mprotect: Permission denied" in line
    assert run.events("register.local") == []

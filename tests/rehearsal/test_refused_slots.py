"""A system that does not let tracehook write into torch's tables of calls (SELinux, seccomp)."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.rehearsal import rehearse

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


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_nothing_is_registered_where_calls_cannot_be_followed(tmp_path: Path) -> None:
    """One line says what was refused and what to allow; the job runs as without tracehook."""
    source, library = tmp_path / "probe.c", tmp_path / "libtorch_cuda_probe.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now,-z,relro", "-o", library, source], check=True)
    logs = tmp_path / "logs"
    run = rehearse("plain.py", log=logs, env={"LD_PRELOAD": str(library)}, cold=True).assert_good()
    assert run.facts()["registered"] == 0
    assert run.facts()["status"]["state"] == "unsupported"
    assert run.facts()["state_then"] == "unsupported"
    assert list(run.facts()["status"]["reasons"]) == ["slots_refused"]
    (line,) = [line for line in run.output.splitlines() if "hook.unsupported" in line]
    assert "a table of calls cannot be written: mprotect: Permission denied" in line
    assert run.events("register.local") == []

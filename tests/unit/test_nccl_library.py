"""Libraries that are called NCCL, and what they do with registrations."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from support.processes import python

from tracehook.hook import nccl_library

SOURCE = """
#include <stdio.h>
int ncclCommRegister(void* comm, void* memory, unsigned long size, void** handle) {{
    fputs("ncclCommRegister is currently unavailable\\n", stderr);
    return 0;
}}
const char* maker(void) {{ return "{maker}"; }}
"""

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")


def build(target: Path, maker: str) -> Path:
    """Compile a library whose registrations only warn."""
    command = ["cc", "-shared", "-fPIC", "-o", str(target), "-xc", "-"]
    subprocess.run(command, input=SOURCE.format(maker=maker), text=True, check=True)
    return target


@needs_compiler
@pytest.mark.parametrize(
    ("maker", "name"), [("mscclpp::Communicator", "MSCCL++"), ("uccl_lite", "UCCL"), ("x", "an unknown maker")]
)
def test_a_library_that_only_warns_is_found(tmp_path: Path, maker: str, name: str) -> None:
    """It is found among the files of this process as soon as it is loaded, and called by its maker's name."""
    file = build(tmp_path / f"libmine_nccl_{len(maker)}.so", maker)
    assert file not in nccl_library.loaded()
    kept = ctypes.CDLL(str(file))
    assert file in nccl_library.loaded()
    assert nccl_library.pretender(file) == name
    del kept


@needs_compiler
def test_doctor_names_it(tmp_path: Path) -> None:
    """Its row says whose library it is, and what to do."""
    file = build(tmp_path / "libpreloaded_nccl.so", "mscclpp")
    code = "from tracehook.commands.doctor import doctor; doctor()"
    found = python(code, env={"LD_PRELOAD": str(file), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "400"})
    assert f"{file} is the NCCL of MSCCL++: it accepts registrations and windows, and makes none." in found.out


def test_nccl_itself_does_not_pretend() -> None:
    """Neither the library that torch loads, nor a file that cannot be read."""
    code = "import torch; from tracehook.hook import nccl_library as n; print([n.pretender(f) for f in n.loaded()])"
    assert python(code).out in ("[None]\n", "[]\n")  # a torch without CUDA loads none
    assert nccl_library.pretender(Path("/no/such/libnccl.so.2")) is None


def test_plugins_of_nccl_and_other_files_are_left_out(tmp_path: Path) -> None:
    """Only files with code whose own name has NCCL in it count, each once."""
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 00:01 1   /lib/libnccl.so.2\n"
        "7f01-7f02 r--p 00000000 00:01 1   /lib/libnccl.so.2\n"
        "7f02-7f03 r-xp 00000000 00:01 1   /lib/libnccl.so.2\n"
        "7f03-7f04 r-xp 00000000 00:01 2   /lib/libnccl-net.so\n"
        "7f04-7f05 r-xp 00000000 00:01 3   /nccl/lib/libother.so\n"
        "7f05-7f06 r--p 00000000 00:01 4   /lib/libdata_nccl.so\n"
        "7f06-7f07 rw-p 00000000 00:00 0\n"
    )
    assert nccl_library.loaded(maps) == [Path("/lib/libnccl.so.2")]

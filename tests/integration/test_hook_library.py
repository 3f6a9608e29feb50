"""The hook library is missing or is another's: said once, nothing is called in it, and the job runs on."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from support.processes import forked
from support.rehearsal import ROOT, Rehearsal, rehearse

from tracehook.hook import library as hook_library

FOREIGN = """
#include "torch/hook_abi.h"
#include <cstdlib>
static int trap_describe(th_allocator_info*, char*, uint32_t) { abort(); }
static int trap(th_segment_callback, void*, char*, uint32_t) { abort(); }
extern "C" const th_hook_api* th_hook_get_api() {
    static const th_hook_api api{SIZE, VERSION, trap_describe, trap, trap};
    return &api;
}
"""

# The real library, but that its snapshots fail from one to another.
FAILING = """
#include "torch/hook_abi.h"
#include <cstdio>
#include <dlfcn.h>
static const th_hook_api* real;
static int failing(th_segment_callback callback, void* user, char* error, uint32_t size) {
    static int calls = 0;
    if (++calls < FROM || calls > UNTIL) return real->snapshot(callback, user, error, size);
    snprintf(error, size, "no memory for it");
    return -1;
}
extern "C" const th_hook_api* th_hook_get_api() {
    static th_hook_api api;
    real = reinterpret_cast<const th_hook_api* (*)()>(dlsym(dlopen(REAL, RTLD_NOW), "th_hook_get_api"))();
    api = *real;
    api.snapshot = failing;
    return &api;
}
"""


def _compile(directory: Path, source: str, **macros: str) -> Path:
    text, library = directory / "foreign.cpp", directory / "libforeign.so"
    text.write_text(source)
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    headers = ROOT / "tracehook" / "cpp"
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", f"-I{headers}", *defines, "-o", library, text], check=True)
    return library


def _assert_ran_on(run: Rehearsal, reason: str, *said: str) -> None:
    run.assert_good()
    status = run.facts()["status"]
    assert (status["state"], list(status["reasons"])) == ("unsupported", [reason])
    assert run.facts()["up"] is True
    lines = run.finished.lines("tracehook: ")
    assert len(lines) == 1, run.output
    for part in said:
        assert part in lines[0]
    assert [event["reason"] for event in run.events("hook.unsupported")] == [reason]
    assert run.events("register.local") == []


def test_missing(tmp_path: Path) -> None:
    """Without a library for this torch, the line names torch's version and the libraries that there are."""
    run = rehearse("with_library.py", log=tmp_path)
    _assert_ran_on(run, "no_hook_library", "torch 2.", "installed hook libraries: 2.", "tracehook build-hook")


OTHERS = ("2.1.0", "2.110.0")
REFUSED: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    **{
        f"built for torch {version}": (
            FOREIGN,
            {"SIZE": "sizeof(th_hook_api)", "VERSION": f'"{version}"'},
            (f"built for torch {version}", "this is torch 2."),
        )
        for version in OTHERS
    },
    "a table that is too small": (
        FOREIGN,
        {"SIZE": "16", "VERSION": f'"{metadata.version("torch")}"'},
        ("16 bytes", "another tracehook"),
    ),
    "none of ours": ("int nothing;", {}, ("{library}", "no th_hook_get_api")),
    "no table": ('extern "C" const void* th_hook_get_api() { return nullptr; }', {}, ("{library}",)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_library_that_does_not_fit_is_refused(tmp_path: Path, kind: str) -> None:
    """Before anything in it is called; the line has its path, or what was seen and expected."""
    source, macros, said = REFUSED[kind]
    library = _compile(tmp_path, source, **macros)
    run = rehearse("with_library.py", str(library), log=tmp_path / "logs")
    _assert_ran_on(run, "attach_failed", *(part.format(library=library) for part in said))


@pytest.mark.parametrize("content", [b"", b"not an ELF file\n"])
def test_truncated(tmp_path: Path, content: bytes) -> None:
    """A file that the loader refuses is named with the loader's reason."""
    library = tmp_path / "libtorn.so"
    library.write_bytes(content)
    run = rehearse("with_library.py", str(library), log=tmp_path / "logs")
    _assert_ran_on(run, "attach_failed", "cannot be loaded", str(library))


def test_torch_without_cuda(tmp_path: Path) -> None:
    """In a build of torch without CUDA the hook says so once and stays out."""
    code = """import torch, tracehook
torch.version.cuda = None
tracehook.enable()
tracehook.disable()
tracehook.enable()
print(tracehook.status()["state"], *tracehook.status()["reasons"])
"""
    run = forked(code, env={"SYMM_REGISTER_LOG": str(tmp_path)})
    assert (run.status, run.out) == (0, "unsupported no_cuda\n"), run.output
    assert len(run.err.splitlines()) == 1
    assert "without CUDA" in run.err


def test_no_device(tmp_path: Path) -> None:
    """With a CUDA build and no device the hook waits without a word, and torch's own error is what the program sees."""
    code = """import torch, tracehook
try:
    torch.empty(4, device="cuda")
except RuntimeError as problem:
    print(type(problem).__name__, tracehook.status()["state"])
"""
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    run = forked(code, env=env)
    assert run.status == 0, run.output
    assert run.out.endswith(" waiting\n"), run.output
    assert run.lines("tracehook") == []


def _with_failing_snapshots(tmp_path: Path, first: int, last: int) -> Rehearsal:
    import torch

    real = hook_library.path_for(torch.__version__)
    library = _compile(tmp_path, FAILING, FROM=str(first), UNTIL=str(last), REAL=f'"{real}"')
    run = rehearse("with_library.py", str(library), "late", log=tmp_path / "logs", hook=False)
    run.assert_good()
    assert "please report this" not in run.output
    return run


@pytest.mark.parametrize("first", [1, 2], ids=["at once", "after the tracker was attached"])
def test_snapshots_that_always_fail(tmp_path: Path, first: int) -> None:
    """Without knowing the older segments nothing is registered: no mixture, and no complaint about their ends."""
    run = _with_failing_snapshots(tmp_path, first, 1 << 30)
    facts = run.facts()
    assert (facts["status"]["state"], list(facts["status"]["reasons"])) == ("unsupported", ["attach_failed"])
    assert facts["again"] == "unsupported"
    assert (facts["left"], facts["left_again"]) == (0, 0)
    (line,) = run.finished.lines("tracehook: ")
    assert "the allocator's snapshot failed: no memory for it" in line


@pytest.mark.parametrize("failing", [2, 3])
def test_a_snapshot_that_fails_once(tmp_path: Path, failing: int) -> None:
    """It is taken again, and every segment is registered."""
    run = _with_failing_snapshots(tmp_path, failing, failing)
    facts = run.facts()
    assert (facts["status"]["state"], facts["again"]) == ("on", "on")
    assert (facts["left"], facts["left_again"]) == (2, 2)

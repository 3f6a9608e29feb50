"""Become the program of ``python ARGUMENTS`` in a process that has imported torch already."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import io
import os
import re
import runpy
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

# Read by the interpreter, the loader, or torch while it is imported: too late to change. The others are read later.
_FORCES_COLD_START = re.compile(
    r"PYTHON(?!_EXEC$)|LD_|MALLOC_|GLIBC_|LC_|LANG|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|NPY_|KINETO_"
    r"|TORCHDYNAMO_|TORCHINDUCTOR_(?!CACHE_DIR$)|TRITON_(?!CACHE_DIR$|LIBCUDA_PATH$)"
    r"|TORCH_(?!NCCL_|FR_|DEVICE_BACKEND_AUTOLOAD$)|PYTORCH_|CUDA_MODULE_LOADING$"
)

# Torch can still be told this one. Torchrun sets it for its ranks.
_THREADS = "OMP_NUM_THREADS"


def read_at_import(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program of a warm start cannot change."""
    return {name: value for name, value in environ.items() if _FORCES_COLD_START.match(name)}


def changed_too_late(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the variables of :func:`read_at_import` in which a program comes too late.

    `one` is what torch was imported with, and `other` what the program has.
    """
    here, there = read_at_import(one), read_at_import(other)
    changed = {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
    if _threads(other):
        changed.discard(_THREADS)
    return sorted(changed)


def _threads(environ: Mapping[str, str]) -> int:
    """Return how many threads compute, 0 if the environment does not say it in one number."""
    text = environ.get(_THREADS, "")
    return int(text) if text.isdecimal() else 0


def is_unbuffered(arguments: list[str]) -> bool:
    """Return whether ``-u`` comes first, as it does in what torchrun starts."""
    return arguments[:1] == ["-u"]


def is_for_us(arguments: list[str]) -> bool:
    """Return whether :func:`run` can do what they say: run a script, ``-m`` or ``-c``, with no option but ``-u``."""
    rest = arguments[is_unbuffered(arguments) :]
    if rest[:1] in (["-c"], ["-m"]):
        return len(rest) > 1
    return bool(rest) and not rest[0].startswith("-") and Path(rest[0]).is_file()


class Torch(importlib.abc.Loader):
    """Torch while the program has not imported it: out of sight, and there at the first ``import torch``."""

    def __init__(self, environ: Mapping[str, str], backends: list[EntryPoint]) -> None:
        """`environ`: what torch was imported with. `backends`: what it would load at its end."""
        self._read_at_import = read_at_import(environ)
        self._backends = backends
        names = [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._torch = self._modules["torch"]
        self._spec = self._torch.__spec__
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch, once."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, _spec: object) -> ModuleType:
        """Return the module that was imported."""
        sys.modules.update(self._modules)
        return self._torch

    def exec_module(self, module: ModuleType) -> None:
        """Do what torch does at the end of its import."""
        module.__spec__ = self._spec
        late = changed_too_late(self._read_at_import, os.environ)
        if late:
            print(
                f"tracehook: {', '.join(late)} changed before `import torch`, too late for a warm start",
                file=sys.stderr,
            )
        threads = _threads(os.environ)
        if threads != _threads(self._read_at_import) and threads:
            module.set_num_threads(threads)
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            for backend in self._backends:
                backend.load()()


def reopen_standard_streams(unbuffered: bool) -> None:
    """Make sys.stdin, stdout and stderr anew, for descriptors 0, 1 and 2 as they are now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        raw = number > 0 and (unbuffered or old.write_through)  # PYTHONUNBUFFERED is as the server had it
        new = _stream(number, old.encoding, old.errors, raw) if _is_open(number) else None
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _stream(number: int, encoding: str, errors: str, raw: bool) -> io.TextIOWrapper:
    binary: Any = os.fdopen(number, "wb" if number else "rb", 0 if raw else -1, closefd=False)
    lines = number == 2 or os.isatty(number)
    stream = io.TextIOWrapper(binary, encoding, errors, line_buffering=lines and not raw, write_through=raw)
    stream.mode = "w" if number else "r"  # type: ignore[misc]
    return stream


def run(arguments: list[str]) -> None:
    """Run a program as the interpreter does.

    Returns, or raises SystemExit, or KeyboardInterrupt when the interpreter is to die of that.
    """
    rest = arguments[is_unbuffered(arguments) :]
    sys.argv = list(rest)
    main = ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        if rest[0] == "-m":
            sys.argv = ["-m", *rest[2:]]
            sys.path[0] = str(Path.cwd())
            runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
        elif rest[0] == "-c":
            sys.argv = ["-c", *rest[2:]]
            sys.path[0] = ""
            exec(compile(rest[1], "<string>", "exec"), main.__dict__)
        else:
            _run_script(rest[0], main)
    except SystemExit:
        raise
    except BaseException as problem:
        _show(problem)
        if isinstance(problem, KeyboardInterrupt):
            sys.excepthook = lambda *_: None
            raise
        sys.exit(1)
    finally:
        if "torch" not in sys.modules:
            _end_without_torch()


def _end_without_torch() -> None:
    """Have the process end without what torch's libraries do then: the program has not imported it."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # called with the exit status, after the interpreter's own end
    libc.on_exit(libc.fcloseall, None)  # called before that one


def _run_script(name: str, main: ModuleType) -> None:
    sys.path[0] = str(Path(os.path.realpath(name)).parent)
    main.__file__ = str(Path.cwd() / name)
    main.__cached__ = None  # type: ignore[attr-defined]
    loader = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    main.__loader__ = loader
    exec(compile(Path(name).read_bytes(), main.__file__, "exec"), main.__dict__)


def _show(problem: BaseException) -> None:
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code in (run.__code__, _run_script.__code__):
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(problem), problem.with_traceback(trace), trace
    sys.excepthook(type(problem), problem, trace)

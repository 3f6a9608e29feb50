"""What the servers' and Megatron's own modules for NCCL import besides torch: stand-ins, as small as they can be."""

import fcntl
import importlib.util
import logging
import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.utils.cpp_extension

FETCHED = Path(os.environ["FETCHED"])  # see fetch.py
LIBRARY = "libnccl.so.2"
OF_TORCH = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python")
ALLOCATION = """
typedef int ncclResult_t;
extern "C" ncclResult_t ncclMemAlloc(void**, size_t);
extern "C" ncclResult_t ncclMemFree(void*);
extern "C" const char* ncclGetErrorString(ncclResult_t);
constexpr ncclResult_t ncclSuccess = 0;
"""
compiled: list[str] = []  # what load_inline was called for


def package(name: str) -> None:
    """Let the modules of a package be found among those that were fetched, without its own __init__."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        module.__path__ = [str(FETCHED.joinpath(*parts[:end]))]


def module(name: str, **content: object) -> None:
    """Make a module; its packages exist already, or are made."""
    parent, _, last = name.rpartition(".")
    package(parent)
    made = types.ModuleType(name)
    vars(made).update(content)
    sys.modules[name] = made
    setattr(sys.modules[parent], last, made)


def load_inline(
    name: str, cpp_sources: str, build_directory: str, is_python_module: bool = False, **_: object
) -> str | types.ModuleType:
    """Compile as torch's function of that name does, but with g++ alone: the sources have no device code."""
    compiled.append(name)
    # One of Python may be kept from a run with another torch.
    target = Path(build_directory) / (f"{name}-{torch.__version__}.so" if is_python_module else f"{name}.so")
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other ranks make the same file
        if not target.exists():
            compile_library(name, cpp_sources, target)
    if not is_python_module:
        return str(target)
    found = importlib.util.spec_from_file_location(name, target)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def compile_library(name: str, text: str, target: Path) -> None:
    """Compile C++ to a library that is linked to the NCCL that is loaded."""
    nvidia = Path(torch.__file__).parent.parent / "nvidia"
    own = target.with_suffix(".part")
    # NCCL's own header includes parts of the CUDA toolkit that torch does not bring.
    source = f"#include <cstdint>\n#include <cstdio>\n{text.replace('#include <nccl.h>', ALLOCATION)}"
    includes = [*torch.utils.cpp_extension.include_paths(), sysconfig.get_path("include"), nvidia / "cu13" / "include"]
    # The sources' own -lnccl needs a link of that name, which a toolkit has.
    linked = [f"-L{nvidia / 'nccl' / 'lib'}", f"-l:{LIBRARY}"]
    linked += [f"-L{Path(torch.__file__).parent / 'lib'}", "-Wl,--as-needed", *(f"-l{each}" for each in OF_TORCH)]
    options = [
        "-shared",
        "-fPIC",
        "-std=c++20",
        "-w",
        f"-DTORCH_EXTENSION_NAME={name}",
        *(f"-I{at}" for at in includes),
    ]
    command = ["g++", "-x", "c++", "-", *options, "-o", str(own), *linked]
    subprocess.run(command, input=source, text=True, check=True)
    own.rename(target)


class StatelessProcessGroup:
    """Nobody uses one here."""


def variable(value: object) -> SimpleNamespace:
    """Return an environment variable as SGLang has them."""
    return SimpleNamespace(get=lambda: value)


def sglang(coordinator: object) -> None:
    """Stand in for the rest of SGLang, whose group of tensor parallelism is given."""
    envs = SimpleNamespace(
        SGLANG_PLUGINS=variable(None),
        SGLANG_PLATFORM=variable(None),
        SGLANG_DEBUG_SYMM_MEM=variable(True),
        SGLANG_SYMM_MEM_PREALLOC_GB_SIZE=variable(1),
    )
    enabled = SimpleNamespace(comm=SimpleNamespace(enable_symm_mem=True))
    package("sglang.srt.distributed.device_communicators")
    module("sglang.srt.distributed.utils", StatelessProcessGroup=StatelessProcessGroup)
    module("sglang.srt.distributed.parallel_state", GroupCoordinator=object, get_tp_group=lambda: coordinator)
    module("sglang.srt.environ", envs=envs)
    updater = "sglang.srt.managers.scheduler_components.weight_updater"
    sleeper(updater, "release_memory_occupation", "resume_memory_occupation")
    module("sglang.srt.runtime_context", get_exec=lambda: enabled)
    module(
        "sglang.srt.utils.common",
        get_current_device_stream_fast=torch.cuda.current_stream,
        torch_release=tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])),
    )


def sleeper(name: str, sleep: str, wake: str) -> None:
    """Make a module with a class that says that it sleeps, and gives nothing back."""

    class Worker:
        def __init__(self) -> None:
            self.offload_tags: set[str] = set()

    def tags(given: object) -> set[str]:
        return set(getattr(given, "tags", None) or ("kv_cache", "weights"))

    setattr(Worker, sleep, lambda self, given=None: self.offload_tags.update(tags(given)))
    setattr(Worker, wake, lambda self, given=None: self.offload_tags.difference_update(tags(given)))
    Worker.__module__ = name
    module(name, Worker=Worker)


def vllm() -> None:
    """Stand in for the rest of vLLM."""
    platform = SimpleNamespace(is_cuda=lambda: True, is_rocm=lambda: False, fp8_dtype=lambda: torch.float8_e4m3fn)
    package("vllm.distributed.device_communicators")
    module("vllm.envs", VLLM_USE_NCCL_SYMM_MEM=True, VLLM_DISABLE_PYNCCL=False, VLLM_PLUGINS=None)
    module("vllm.distributed.utils", StatelessProcessGroup=StatelessProcessGroup)
    module("vllm.logger", init_logger=logger)
    module("vllm.platforms", current_platform=platform)
    module("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)
    sleeper("vllm.v1.worker.gpu_worker", "sleep", "wake_up")
    module(
        "vllm.utils.nccl",
        find_nccl_library=lambda: LIBRARY,
        find_nccl_include_paths=list,
        find_nccl_library_paths=list,
    )


def megatron() -> None:
    """Stand in for the rest of Megatron-LM."""
    version = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    package("megatron.core")
    module(
        "megatron.core.utils",
        is_torch_min_version=lambda least: tuple(map(int, least.split(".")[:2])) <= version,
        log_single_rank=lambda to, level, text: to.log(level, text),
    )


def logger(name: str) -> logging.Logger:
    """Return a logger that has vLLM's one more method."""
    made = logging.getLogger(name)
    made.info_once = made.info  # type: ignore[attr-defined]  # the method that loggers lack
    return made


torch.utils.cpp_extension.load_inline = load_inline

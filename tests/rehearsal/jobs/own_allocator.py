"""An allocator that a program brings along: it calls CUDA by itself, and torch calls it."""

import subprocess
from pathlib import Path

import torch

SOURCE = """
#include <stddef.h>
typedef void* stream;
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
extern "C" void* take(ptrdiff_t size, int, stream) { void* out = nullptr; cudaMalloc(&out, size); return out; }
extern "C" void give(void* pointer, ptrdiff_t, int, stream) { cudaFree(pointer); }
"""


def made_in(folder: str, name: str) -> torch.cuda.memory.CUDAPluggableAllocator:
    """Compile it there, and load it."""
    library = Path(folder, f"lib{name}.so")
    source = library.with_suffix(".cpp")
    source.write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give")

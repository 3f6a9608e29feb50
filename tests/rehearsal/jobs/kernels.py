"""Code that a program loads and launches by CUDA itself, without torch. What each call answered is told."""

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p

from common import must, tell
from driver import cuda, new_stream, runtime

CODE = b"any code"
SHAPE = [c_uint(4), c_uint(1), c_uint(1), c_uint(32), c_uint(1), c_uint(1), c_uint(0)]


class Dim3(ctypes.Structure):
    """What dim3 is."""

    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


def named(name: bytes) -> Callable[..., int]:
    """Return a function of the driver as the runtime hands it out."""
    address, found = c_void_p(), c_int()
    must(runtime.cudaGetDriverEntryPoint(name, byref(address), c_uint64(0), byref(found)))
    return ctypes.CFUNCTYPE(c_int)(address.value or 0)


def loaded() -> tuple[c_void_p, c_void_p]:
    """Return a module on the current device, and a kernel of it."""
    module, kernel = c_void_p(), c_void_p()
    must(cuda.cuModuleLoadData(byref(module), CODE))
    must(cuda.cuModuleGetFunction(byref(kernel), module, b"of_a_module"))
    return module, kernel


def launch(kernel: c_void_p, stream: c_void_p, *shape: c_uint) -> int:
    """Return what the driver says to a launch."""
    return int(cuda.cuLaunchKernel(kernel, *(shape or SHAPE), stream, None, None))


early = c_void_p()
tell(without_context=cuda.cuModuleLoadData(byref(early), CODE))
must(runtime.cudaSetDevice(1))
there = new_stream()
must(runtime.cudaSetDevice(0))
here = new_stream()
module, kernel = loaded()
same = c_void_p()
must(cuda.cuModuleGetFunction(byref(same), module, b"of_a_module"))
tell(
    same=same.value == kernel.value,
    here=launch(kernel, here),
    by_name=named(b"cuLaunchKernel")(kernel, *SHAPE, here, None, None),
    default=launch(kernel, c_void_p()),
    elsewhere=launch(kernel, there),
    no_stream=launch(kernel, c_void_p(64)),
    too_many_threads=launch(kernel, here, *SHAPE[:3], c_uint(1025), *SHAPE[4:]),
)

registers, blocks, clusters = c_int(), c_int(), c_int()
must(cuda.cuFuncGetAttribute(byref(registers), 4, kernel))
must(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(blocks), kernel, 1024, c_uint64(0)))
cluster = (c_uint * 18)(4, 0, 4, 1, 1)  # attribute 4: four blocks in a cluster
configuration = (c_uint64 * 7)(0, 0, 0, 0, 0, ctypes.addressof(cluster), 1)
must(cuda.cuOccupancyMaxActiveClusters(byref(clusters), kernel, configuration))
tell(
    registers=registers.value,
    blocks=blocks.value,
    clusters=clusters.value,
    shared=[cuda.cuFuncSetAttribute(kernel, 8, kib << 10) for kib in (227, 228)],
    no_file=cuda.cuModuleLoad(byref(early), b"/nowhere"),
)

space = ctypes.create_string_buffer(256)
tensor_map, tensor, nothing = (ctypes.addressof(space) + 127) // 64 * 64, c_void_p(4096), [None] * 4
tell(
    described=cuda.cuTensorMapEncodeTiled(c_void_p(tensor_map), 7, 2, tensor, *nothing, 0, 0, 0, 0),
    misaligned=cuda.cuTensorMapEncodeTiled(c_void_p(tensor_map + 8), 7, 2, tensor, *nothing, 0, 0, 0, 0),
)

second, popped, device, limit = c_void_p(), c_void_p(), c_int(), c_uint64()
must(cuda.cuDevicePrimaryCtxRetain(byref(second), 1))
must(cuda.cuCtxPushCurrent_v2(second))
tell(pushed=[cuda.cuCtxGetDevice(byref(device)), device.value, launch(kernel, c_void_p())])
must(cuda.cuCtxPopCurrent_v2(byref(popped)))
must(cuda.cuCtxSynchronize())
must(cuda.cuCtxSetLimit(1, c_uint64(4096)))
must(cuda.cuCtxGetLimit(byref(limit), 1))
tell(popped=[popped.value == second.value, cuda.cuCtxGetDevice(byref(device)), device.value], limit=limit.value)
tell(nothing_pushed=cuda.cuCtxPopCurrent_v2(byref(popped)))

library, of_any = c_void_p(), c_void_p()
must(cuda.cuLibraryLoadData(byref(library), CODE, None, None, 0, None, None, 0))
must(cuda.cuLibraryGetKernel(byref(of_any), library, b"of_a_library"))
tell(of_any=[launch(of_any, here), launch(of_any, there)])
must(runtime.cudaLibraryLoadData(byref(library), CODE, None, None, 0, None, None, 0))
must(runtime.cudaLibraryGetKernel(byref(of_any), library, b"of_a_library"))
tell(by_runtime=runtime.cudaLaunchKernel(of_any, Dim3(4, 1, 1), Dim3(32, 1, 1), None, c_uint64(0), here))

runtime.__cudaRegisterFatBinary.restype = c_void_p
extension, functions = c_void_p(runtime.__cudaRegisterFatBinary(None)), (c_void_p(0x10000), c_void_p(0x20000))
for function, symbol in zip(functions, (b"_ZN2my3addIiEEvPT_", b"_ZN2my3addIfEEvPT_"), strict=True):
    runtime.__cudaRegisterFunction(extension, function, None, symbol, -1, None, None, None, None, None)
    must(runtime.cudaLaunchKernel(function, Dim3(4, 1, 1), Dim3(32, 1, 1), None, c_uint64(0), here))

graph, instance, relaxed = c_void_p(), c_void_p(), 2
must(runtime.cudaStreamBeginCapture(here, relaxed))
must(launch(kernel, here))
captured = c_int()
must(cuda.cuStreamIsCapturing(here, byref(captured)))
tell(captured=captured.value)
must(runtime.cudaStreamEndCapture(here, byref(graph)))
must(runtime.cudaGraphInstantiate(byref(instance), graph, c_uint64(0)))
must(cuda.cuModuleUnload(module))
must(runtime.cudaGraphLaunch(instance, here))
tell(unloaded=[launch(kernel, here), cuda.cuModuleUnload(module)])

child = os.fork()
if child == 0:
    tell(forked=launch(of_any, here))
    raise SystemExit
os.waitpid(child, 0)

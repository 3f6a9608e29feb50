"""Capture work into CUDA graphs, change what it reads, and launch the graphs again and again."""

import ctypes
import gc
import sys
import warnings

import torch

from common import calls, tell

N = 1024


def on_device(value: float) -> torch.Tensor:
    return torch.full((N,), float(value)).to("cuda")


def value(tensor: torch.Tensor) -> float:
    return float(tensor.cpu()[-1])


def copies() -> None:
    """A chain of copies; a second graph on a stream of the program's own, in the pool of the first, with a fork."""
    source, target = on_device(1), on_device(0)
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = torch.empty_like(source)
        middle.copy_(source)
        target.copy_(middle)
        capturing = torch.cuda.is_current_stream_capturing()
    tell(capturing=[capturing, torch.cuda.is_current_stream_capturing()], only_captured=value(target))

    second, side, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.graph(second, pool=first.pool(), stream=stream):
        forked, joined = torch.empty_like(source), torch.empty_like(source)
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            forked.copy_(target)
        stream.wait_stream(side)
        joined.copy_(forked)
        # torch fills by a kernel, which does nothing here.
        set_memory = ctypes.CDLL(None).cudaMemsetAsync
        set_memory(ctypes.c_void_p(joined.data_ptr()), 0, ctypes.c_size_t(4), ctypes.c_void_p(stream.cuda_stream))
    seen = []
    for step in (5, 6, 7):
        source.copy_(on_device(step))
        first.replay()
        second.replay()
        seen.append([value(target), value(joined), joined.cpu()[0].item()])
    tell(seen=seen)

    host, late = torch.zeros(N).pin_memory(), torch.cuda.Event(external=True)
    third = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(third):
        host.copy_(source, non_blocking=True)
        late.record()
    third.instantiate()
    third.replay()
    late.synchronize()
    tell(host=host[-1].item(), late=late.query())


def surroundings() -> None:
    """A training step with random numbers; an empty graph; what is left of the memory when a graph goes."""
    layer = torch.nn.Linear(32, 32).cuda()
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    batch = torch.randn(8, 32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(torch.cuda.default_generators[0])
    with torch.cuda.graph(graph):
        loss = layer(torch.nn.functional.dropout(batch)).sum()
        loss.backward()
        optimiser.step()
        held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
    before, freed = torch.cuda.memory_reserved(), calls("cudaFree")
    del held, loss
    gc.collect()
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved()
    optimiser.zero_grad(set_to_none=True)
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    tell(
        warned=[str(warning.message) for warning in caught],
        kept=before - kept,
        released=kept - torch.cuda.memory_reserved(),
        freed=calls("cudaFree") > freed,
    )


def unsafe() -> None:
    """Calls that a capture forbids, in each mode, and a graph that works afterwards."""
    source, target = on_device(1), on_device(0)
    before = torch.cuda.Event()
    before.record()
    side = torch.cuda.Stream()

    def asks_captured() -> None:
        event = torch.cuda.Event()
        event.record()
        event.query()

    def forgets_to_join() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            target.copy_(source)

    steps = {
        "synchronize": torch.cuda.synchronize,
        "item": lambda: source[0].item(),
        "query": before.query,
        "captured": asks_captured,
        "wait": lambda: torch.cuda.current_stream().wait_event(before),
        "join": forgets_to_join,
    }
    said: dict[str, dict[str, list[str]]] = {}
    for mode in ("global", "thread_local", "relaxed"):
        for name, step in steps.items():
            heard = said.setdefault(name, {}).setdefault(mode, [])
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
                    target.copy_(source)
                    try:
                        step()
                    except RuntimeError as problem:
                        heard.append(str(problem).splitlines()[0])
            except RuntimeError as problem:
                heard.append(str(problem).splitlines()[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    source.copy_(on_device(8))
    graph.replay()
    tell(said=said, afterwards=value(target))


{"copies": copies, "surroundings": surroundings, "unsafe": unsafe}[sys.argv[1]]()

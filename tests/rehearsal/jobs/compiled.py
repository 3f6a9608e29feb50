"""Code for torch.compile that uses symmetric memory. Arguments: which functions of this file to run, in this order."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, start, tell

ROWS, WIDTH = 4, 8


def values(*shape: int) -> torch.Tensor:
    """Return rank + 1 in every element."""
    return torch.full(shape, RANK + 1.0).to(device)


def said(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[object]:
    """Return the rows, of which all elements are equal, and whether the tensor is symmetric."""
    rows = tensor.cpu()
    assert bool((rows == rows[:, :1]).all()), rows
    return [rows[:, 0].tolist(), tracehook.is_symmetric(tensor, group)]


def compiled(function: Callable[..., Any]) -> Any:
    """Return the function as one graph, with what writes in place made anew, as every compiler's backend has it."""
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def layer() -> None:
    """A row-parallel layer, for three batches: its output is reduced in a window."""

    @compiled
    def step(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return tracehook.all_reduce(torch.mm(tokens, weight))  # the first use of tracehook is inside of a trace

    outputs = []
    weight = values(WIDTH, WIDTH)
    tell(loaded="tracehook.symmetric_memory.compiled" in sys.modules)
    for rows in (ROWS, 2 * ROWS, 3 * ROWS):
        found = step(values(rows, WIDTH), weight)
        outputs.append([list(found.shape), tracehook.is_symmetric(found)])
    tell(outputs=outputs)


def collectives() -> None:
    """All of them, over the default group and another, with and without sizes, and with another operator."""
    group = dist.new_group(list(range(WORLD)), device_id=device)
    rows = [3 * (rank + 1) for rank in range(WORLD)]
    maximum = dist.ReduceOp.MAX
    whole = values(2 * WORLD, WIDTH)

    def gathered(shard: torch.Tensor) -> list[torch.Tensor]:
        return tracehook.all_gather(shard, group)

    for name, function, given, where in (
        ("reduced", lambda x: tracehook.all_reduce(x), whole, None),
        ("maximum", lambda x: tracehook.all_reduce(x, group, maximum), whole, group),
        ("gathered", lambda x: tracehook.all_gather_into_tensor(x), values(3, WIDTH), None),
        ("unequal", lambda x: tracehook.all_gather_into_tensor(x, group, rows), values(rows[RANK], WIDTH), group),
        ("scattered", lambda x: tracehook.reduce_scatter_tensor(x, group, op=maximum), whole, group),
        ("sized", lambda x: tracehook.reduce_scatter_tensor(x, sizes=[2] * WORLD), whole, None),
    ):
        tell(**{name: said(compiled(function)(given), where)})
    tell(parts=[said(part, group) for part in compiled(gathered)(values(3, WIDTH))])


def own_operator() -> None:
    """What an operator of the program writes into is symmetric; what a compiler makes of `out=` is not."""

    @torch.library.custom_op("program::layer", mutates_args=())
    def operator(tokens: torch.Tensor) -> torch.Tensor:
        out = tracehook.empty(*tokens.shape, dtype=tokens.dtype)
        out.copy_(tokens)
        dist.all_reduce(out)
        return out

    @operator.register_fake
    def _(tokens: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tokens)

    def in_place(tokens: torch.Tensor) -> torch.Tensor:
        out = tracehook.empty(*tokens.shape, dtype=tokens.dtype)
        torch.mm(tokens, tokens, out=out)
        dist.all_reduce(out)
        return out

    given = values(WIDTH, WIDTH)
    tell(layer=said(compiled(lambda tokens: torch.ops.program.layer(tokens))(given)))
    tell(in_place=tracehook.is_symmetric(compiled(in_place)(given)))


def scope() -> None:
    """A scope ends the graph before it, and leaves all that tracehook does there to Python."""
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(
            [getattr(node.target, "__name__", node.target) for node in graph.graph.nodes if node.op.startswith("call")]
        )
        return graph.forward

    def made(like: torch.Tensor) -> torch.Tensor:
        with tracehook.symmetric(operation="all_reduce", nbytes=like.nbytes):
            return torch.empty_like(like)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        before = tokens.reshape(-1)
        out = made(before)
        out.copy_(before)
        dist.all_reduce(out, async_op=True).wait()  # which no compiler takes in
        return torch.reshape(out, tokens.shape)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [said(torch.compile(step, backend=backend)(values(ROWS, WIDTH))) for _ in range(2)]
    try:
        compiled(step)(values(ROWS, WIDTH))
    except torch._dynamo.exc.Unsupported as error:
        tell(refused=str(error))
    tell(results=results, graphs=graphs, warnings=[str(one.message) for one in caught])


def captured() -> None:
    """A compiled layer in a CUDA graph, whose memory was reserved before."""
    step = compiled(tracehook.all_reduce)
    given = values(ROWS, WIDTH)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tracehook.reserve(0, graph=True)
        step(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = step(given)
    graph.replay()
    first = said(out)
    given.copy_(torch.full((ROWS, WIDTH), 10.0))
    graph.replay()
    tell(replays=[first, said(out)])
    torch.cuda.synchronize()
    graph.reset()


def switched_off() -> None:
    """One graph, used with tracehook, without it, and with it again."""
    step = compiled(tracehook.all_reduce)
    tell(first=said(step(values(ROWS, WIDTH))))
    tracehook.disable()
    tell(second=said(step(values(2 * ROWS, WIDTH))))
    tracehook.enable()
    tell(third=said(step(values(3 * ROWS, WIDTH))))


store = os.environ["TEST_STORE"]
for case in sys.argv[1:]:
    os.environ["TEST_STORE"] = f"{store} of {case}"
    device = start()
    globals()[case]()
    torch.cuda.synchronize()
    tell(**{f"communicator of {case}": tracehook.status()["communicators"][0]["key"]})
    dist.destroy_process_group()
    torch.compiler.reset()

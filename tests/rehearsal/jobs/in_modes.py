"""The first scope of a group, which makes its communicator, inside of what a program has put around torch's functions.

`seen`: by case, what the mode of the program saw of the scope; `sums`: of a tensor that a scope made; `windows`: how
many there are after a reserve in each of these; `asked`: what is said of tensors without an address.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from common import RANK, WORLD, start, tell

device = start(bind=False)
warnings.simplefilter("error")
seen: dict[str, list[str]] = {}
sums: dict[str, float] = {}
asked: dict[str, Any] = {}
windows: list[int] = []


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Notes each operator."""

    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self.into = into

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.into.append(str(func))
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):  # type: ignore[misc]
    """Notes each function of torch."""

    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self.into = into

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.into.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def replaced(into: list[str]) -> Iterator[None]:
    """Replace torch.empty by one that makes tensors without memory, as those do that load a model in pieces."""
    plain = torch.empty

    def empty(*given: Any, **named: Any) -> torch.Tensor:
        into.append("empty")
        return plain(*given, **(named | {"device": "meta"}))

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = plain


def made(group: dist.ProcessGroup) -> torch.Tensor:
    with tracehook.symmetric(group):
        return torch.full((1024,), RANK + 1.0).to(device)


def inside(name: str, around: Callable[[list[str]], Any]) -> None:
    group = dist.new_group(list(range(WORLD)))
    into = seen.setdefault(name, [])
    with around(into):
        with tracehook.symmetric(group):
            pass
        tracehook.reserve(3 << 20, group, small_nbytes=0)
        windows.append(sum(row["windows"] for row in tracehook.status()["windows"]))
    tensor = made(group)
    dist.all_reduce(tensor, group=group)
    sums[name] = tensor.sum().item() if tensor.is_cpu else tensor.cpu().sum().item()


def differentiated() -> None:
    group = dist.new_group(list(range(WORLD)))

    def loss(given: torch.Tensor) -> torch.Tensor:
        with tracehook.symmetric(group):
            asked["differentiated"] = [tracehook.is_symmetric(given, group), tracehook.explain(given, group).reason]
            scaled = given * 3
        return scaled.sum()

    torch.func.grad(loss)(torch.ones(4, device=device))
    torch.func.vmap(lambda given: given * 2)(torch.ones(4, device=device))
    seen["traced"] = []
    other = dist.new_group(list(range(WORLD)))

    def entered(given: torch.Tensor) -> torch.Tensor:
        with tracehook.symmetric(other):
            return given * 2

    traced = make_fx(entered)(torch.ones(8, device=device))
    seen["traced"] = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]


def said(tensor: torch.Tensor) -> list[object]:
    return [tracehook.is_symmetric(tensor), tracehook.explain(tensor, operation="all_reduce").reason]


def without_an_address() -> None:
    eye = torch.eye(4)
    with FakeTensorMode():
        fake = torch.empty(4, device=device)
    warnings.simplefilter("ignore")
    tensors = {
        "sparse": eye.to_sparse().to(device),
        "rows": eye.to_sparse_csr().to(device),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to(device),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged).to(device),
    }
    warnings.simplefilter("error")
    tensors["fake"] = fake
    asked.update({name: said(tensor) for name, tensor in tensors.items()})


inside("dispatched", Dispatched)
inside("called", Called)
inside("fake", lambda _: FakeTensorMode())
inside("replaced", replaced)
inside("inference", lambda _: torch.inference_mode())
inside("another default", lambda _: torch.device("meta"))
differentiated()
made(dist.group.WORLD)
without_an_address()
tell(seen=seen, sums=sums, asked=asked, windows=windows)
dist.destroy_process_group()

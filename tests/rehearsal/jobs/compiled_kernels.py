"""Programs whose kernels are compiled while they run. Argument: which function of this file to run."""

import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from common import start, tell

SIZE, WIDTH = 1000, 16


@triton.jit
def add_one(values, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    there = places < count
    tl.store(values + places, tl.load(values + places, mask=there) + 1, mask=there)


@triton.autotune([triton.Config({"block": size}) for size in (128, 256)], key=["count"])
@triton.jit
def tuned(values, count, block: tl.constexpr):
    """Touch each value."""
    places = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(values + places, 0.0, mask=places < count)


@triton.jit
def copy_tile(source, target):
    """Copy one tile that a descriptor names."""
    target.store([0, 0], source.load([0, 0]))


class Layer(torch.nn.Module):
    """Two products with a function between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        return self.second(torch.nn.functional.gelu(self.first(tokens)))


class Model(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def train(model, parameters, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, WIDTH).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def by_hand() -> None:
    """One kernel: five launches, a graph with one of them that is launched three times, a grid that is too large."""
    target, properties = driver.active.get_current_target(), torch.cuda.get_device_properties(0)
    said = driver.active.utils.get_device_properties(0)
    tell(target=[target.backend, target.arch, target.warp_size], capability=torch.cuda.get_device_capability())
    tell(
        of_triton=[said["max_shared_mem"], said["multiprocessor_count"], said["warpSize"]],
        of_torch=[properties.shared_memory_per_block_optin, properties.multi_processor_count, properties.warp_size],
    )
    values = torch.zeros(SIZE).cuda()
    for _ in range(5):
        add_one[(4,)](values, SIZE, block=256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[(4,)](values, SIZE, block=256)
    for _ in range(3):
        graph.replay()
    try:
        add_one[(1, 70000)](values, SIZE, block=256)
    except RuntimeError as refused:
        tell(refused=str(refused))
    torch.cuda.synchronize()
    tell(values=values.cpu().unique().tolist())


def by_others() -> None:
    """What an autotuner times, what has descriptors of tensors, and what NVIDIA's compiler makes."""
    values = torch.zeros(SIZE).cuda()
    tuned[lambda meta: (triton.cdiv(SIZE, meta["block"]),)](values, SIZE)
    tell(times=sorted(min(times) for times in tuned.configs_timings.values()))
    tile = TensorDescriptor.from_tensor(torch.zeros(32, 32).cuda(), [32, 32])
    copy_tile[(1,)](tile, tile)
    kernel = torch.cuda._compile_kernel('extern "C" __global__ void set(float* x) { *x = 1; }', "set")
    kernel(args=[values])
    # PyTorch compiles this one too, but the host computes it.
    tell(bessel=torch.special.bessel_j0(torch.zeros(2).cuda()).tolist())


def models() -> None:
    """torch.compile, with its workers: training in one graph, in CUDA graphs, attention, an autotuned product."""
    # Imported here, because that takes as long as a job without it.
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.cudagraph_trees import get_container
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(_batch, _head, row, column):
        return row >= column

    AsyncCompile.wait_pool_ready()
    tell(workers=AsyncCompile.use_process_pool())
    model = Model().cuda()
    train(torch.compile(model, fullgraph=True), model.parameters())
    torch.compiler.reset()
    train(torch.compile(model, mode="reduce-overhead"), model.parameters())
    counted = torch._dynamo.utils.counters["inductor"]
    tell(graphs=get_container(0).tree_manager is not None, skipped=counted["cudagraph_skips"])

    query = torch.randn(1, 2, 128, 16).cuda().requires_grad_()
    mask = create_block_mask(causal, None, None, 128, 128)
    torch.compile(flex_attention)(query, query, query, block_mask=mask).sum().backward()
    tell(attention=list(query.grad.shape))

    torch._inductor.config.test_configs.max_mm_configs = 2
    product = torch.compile(torch.mm, options={"max_autotune": True, "max_autotune_gemm_backends": "TRITON"})
    matrix = torch.zeros(64, 64).cuda()
    tell(product=list(product(matrix, matrix).shape))
    torch.cuda.synchronize()


def ranks() -> None:
    """Compiled models under DDP and under FSDP2."""
    device = start()
    replicas = DistributedDataParallel(Model().cuda(), device_ids=[device.index])
    train(torch.compile(replicas), replicas.parameters())
    shards = Model().cuda()
    for layer in shards.layers:
        fully_shard(layer)
    fully_shard(shards)
    train(torch.compile(shards), shards.parameters())
    tell(frames=torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] > 0)
    dist.destroy_process_group()


globals()[sys.argv[1]]()

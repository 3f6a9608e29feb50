"""Values that a program sees: each function below is one case, chosen by its name."""

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import RANK, raised, start, tell


def seen() -> None:
    """What a program prints, compares and selects."""
    ones = torch.ones(4, device="cuda")
    x = torch.arange(6.0, device="cuda").view(2, 3)
    tell(
        ones=ones.tolist(),
        printed=str(torch.tensor([1.0, 2.5], device="cuda")),
        equal=torch.equal(ones, torch.ones(4, device="cuda")),
        masked=x[x > 2].tolist(),
        converted=x.bfloat16().long().tolist(),
        unique=torch.tensor([3, 1, 3], device="cuda").unique().tolist(),
        product=(x @ x.T).tolist(),
        summed=x.sum().item(),
        empty=torch.empty(3, device="cuda").isnan().all().item(),
    )


def random() -> None:
    """The same seed gives the same numbers, another one others; the host's own numbers go on undisturbed."""
    torch.manual_seed(1)
    undisturbed = torch.rand(3).tolist()
    torch.manual_seed(1)
    torch.cuda.manual_seed(5)
    first, second = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    dropped = functional.dropout(torch.ones(1000, device="cuda"), 0.25)
    host = torch.rand(3).tolist()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    again = torch.randn(1000, device="cuda")
    torch.cuda.set_rng_state(state)
    tell(
        same=torch.equal(first, again) and torch.equal(first, torch.randn(1000, device="cuda")),
        differs=not torch.equal(first, second),
        mean=first.mean().item(),
        deviation=first.std().item(),
        kept=(dropped > 0).float().mean().item(),
        scaled=dropped.max().item(),
        undisturbed=host == undisturbed,
    )


def attention() -> None:
    """Fused attention with dropout: the backward pass drops what the forward pass dropped."""
    shape, worst = (2, 4, 16, 8), {}
    for dtype in (torch.float32, torch.bfloat16):  # PyTorch takes another kernel for each
        query, key, value = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        value.data.copy_(torch.ones(shape))
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5, is_causal=True)
        (gradient,) = torch.autograd.grad(out.float().sum(), value, retain_graph=True)
        # Of values that are all one, the output is what the weights sum to, and so is the gradient of the values.
        worst[str(dtype)] = [(out.float().sum() - gradient.float().sum()).abs().item(), out.float().std().item()]
    tell(worst=worst)


def choice_of_attention() -> None:
    """Attention by the kernels that a program names, cuDNN's before others, or alone."""
    torch.manual_seed(0)
    host = torch.randn(3, 2, 4, 8, 16, dtype=torch.bfloat16)  # query, key and value of 2 x 4 heads, 8 tokens
    inputs, attend = host.cuda().requires_grad_(), functional.scaled_dot_product_attention
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        out = attend(inputs[0], inputs[1], inputs[2], is_causal=True)
    out.sum().backward()
    difference = out.detach().cpu() - attend(host[0], host[1], host[2], is_causal=True)
    tell(differs=difference.abs().max().item(), gradient=inputs.grad.isfinite().all().item())
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        tell(alone=raised(attend, *inputs))


def modules() -> None:
    """Layers whose CUDA kernels call libraries that are not emulated, with their gradients."""
    torch.manual_seed(3)
    differ = {}
    for name, module, shape in (
        ("conv", nn.Conv2d(4, 8, 3, padding=1), (2, 4, 6, 6)),
        ("depthwise", nn.Conv2d(4, 4, 3, groups=4), (2, 4, 6, 6)),
        ("transposed", nn.ConvTranspose2d(4, 3, 2), (2, 4, 6, 6)),
        ("conv3d", nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
        ("lstm", nn.LSTM(4, 5, num_layers=2, bidirectional=True), (3, 2, 4)),
        ("gru", nn.GRU(4, 5), (3, 2, 4)),
        ("batch norm", nn.BatchNorm2d(4), (2, 4, 6, 6)),
        ("rms norm", nn.RMSNorm(6), (2, 4, 6)),
    ):
        gradients = []
        for device in ("cpu", "cuda"):
            module.to(device).zero_grad()
            inputs = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(device).requires_grad_()
            out = module(inputs)
            out = out[0] if isinstance(out, tuple) else out
            (out * torch.linspace(0, 1, out.numel(), device=device).view_as(out)).sum().backward()
            found = (out.detach(), inputs.grad, *(each.grad for each in module.parameters()))
            gradients.append([each.clone().cpu() for each in found])
        pairs = zip(*gradients, strict=True)
        differ[name] = max((a - b).abs().max().item() for a, b in pairs)
    tell(differ=differ)


def graph() -> None:
    """A graph computes at each launch, from what its inputs hold then."""
    x = torch.ones(4, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x * 2).sum()
    found = []
    for value in (1.0, 3.0):
        x.fill_(value)
        captured.replay()
        found.append(y.item())
    tell(found=found)


def streams() -> None:
    """What another stream computes is there for who waits for its event, after what it waited for."""
    side, x = torch.cuda.Stream(), torch.zeros(4, device="cuda")
    for step in range(200):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x += 1
        torch.cuda.current_stream().wait_stream(side)
        x *= 1 if step % 2 else 2
    expected = 0.0
    for step in range(200):
        expected = (expected + 1) * (1 if step % 2 else 2)
    tell(ratio=x[0].item() / torch.tensor(expected, dtype=torch.float32).item())


def large() -> None:
    """What is larger than the limit is NaN, or 0 in integers, at both ends, and takes no memory between them."""
    before = torch.cuda.memory_allocated()
    x = torch.ones(1 << 22, device="cuda")
    whole = torch.ones(1 << 22, device="cuda", dtype=torch.int32)
    try:
        x[x > 0]
    except RuntimeError as problem:
        said = str(problem)
    tell(ends=[x[0].isnan().item(), x[-1].isnan().item()], integers=whole[-1].item(), said=said, before=before)


def uncomputed() -> None:
    """A result that nobody computes is NaN everywhere, if it is no larger than what could be computed."""
    weight, indices = torch.ones(1 << 11, 1 << 11, device="cuda"), torch.full((1 << 11,), 9999, device="cuda")
    result = weight.index_select(0, indices)  # the host's kernel refuses these indices
    middle = result[1 << 10]
    tell(nan=[middle.isnan().all().item(), result.isnan().all().item()])


def refused() -> None:
    """An index that is out of bounds is named, and the program goes on."""
    weight = torch.ones(4, 2, device="cuda")
    tell(nan=functional.embedding(torch.tensor([9], device="cuda"), weight).isnan().all().item())


def asserted() -> None:
    """After an assertion of a kernel every later call of CUDA fails."""
    memory, index = torch.ones(1, device="cuda"), torch.ones(1, dtype=torch.int64, device="cuda")
    memory[index] = 0
    said = []
    for _ in range(2):
        try:
            torch.cuda.synchronize()
        except RuntimeError as problem:
            said.append(str(problem).splitlines()[0])
    tell(said=said)


def symmetric() -> None:
    """PyTorch's own symmetric memory: ranks read each other's buffers; what its kernels compute is NaN."""
    device = start()
    mine = symmetric_memory.empty(64, device=device).fill_(RANK + 1.0)
    handle = symmetric_memory.rendezvous(mine, dist.group.WORLD)
    handle.barrier()
    dist.barrier()
    peer = handle.get_buffer(1 - RANK, (4,), torch.float32)
    reduced = torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", dist.group.WORLD.group_name)
    tell(peer=peer.tolist(), reduced=reduced.isnan().all().item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]]()

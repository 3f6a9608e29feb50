"""Values that PyTorch computes beside its dense operations on one device: each function below is one case."""

import sys
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from common import tell


def between() -> None:
    """Copies from device to device, of what lies otherwise, or is of another type, than where it goes."""
    x = torch.arange(24.0).view(4, 6)
    here, there = x.cuda(0), {}
    there["transposed"] = here.t().to("cuda:1").equal(x.t().cuda(1))
    there["every second"] = here[:, ::2].to("cuda:1").tolist() == x[:, ::2].tolist()
    there["rounded"] = here.t().to("cuda:1", torch.bfloat16).tolist() == x.t().bfloat16().tolist()
    target = torch.zeros(6, 4, dtype=torch.float64, device="cuda:1")
    there["into a view"] = target.t().copy_(here).tolist() == x.tolist()
    there["repeated"] = torch.zeros(4, 6, device="cuda:1").copy_(here[:1]).tolist() == x[:1].expand(4, 6).tolist()
    tell(there=there)


def graph() -> None:
    """Each launch of a graph has numbers of its own, from the device's generator as it is then."""
    captured, ones = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    with torch.cuda.graph(captured):
        numbers, dropped = torch.rand(1000, device="cuda"), nn.functional.dropout(ones)
    found = []
    for seed in (3, 3, 4):
        torch.cuda.manual_seed(seed)
        for _ in range(2):
            captured.replay()
            found.append((numbers.tolist(), dropped.tolist()))
    tell(repeat=found[:2] == found[2:4], distinct=len({str(each[part]) for each in found[2:] for part in (0, 1)}))


def nested(device: str) -> list[torch.Tensor]:
    """Sentences of different lengths."""
    x = torch.linspace(-1, 1, 32, device=device).view(8, 4)
    sentences = torch.nested.nested_tensor([x[:3], x[3:]])
    mask = torch.tensor([[True, True, False], [True, True, True]], device=device)
    from_mask = torch._nested_tensor_from_mask(x[:6].view(2, 3, 4), mask)
    results = (sentences, sentences + sentences, torch.softmax(sentences, -1), from_mask)
    return [each.to_padded_tensor(-1.0) for each in results]


def encoder(device: str) -> list[torch.Tensor]:
    """A transformer that is evaluated, with padding: PyTorch takes nested tensors then."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval().to(device)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5], device=device)
    with torch.no_grad():
        return [model(torch.linspace(-1, 1, 160, device=device).view(2, 5, 16), src_key_padding_mask=padding)]


def sequences(device: str) -> list[torch.Tensor]:
    """Attention with a causal mask that ends at the last key, and over sequences of different lengths."""
    torch.manual_seed(2)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = causal_lower_right(4, 6)
    aligned = nn.functional.scaled_dot_product_attention(q.to(device), k.to(device), v.to(device), attn_mask=mask)
    lengths = [torch.randn(count, 3, 8) for count in (2, 5, 1)]
    if device == "cpu":
        rows = [x.transpose(0, 1) for x in lengths]
        of_each = [nn.functional.scaled_dot_product_attention(x, 2 * x, x - 1).transpose(0, 1) for x in rows]
        return [aligned, torch.cat(of_each)]
    jagged = torch.nested.nested_tensor(lengths, layout=torch.jagged, device=device).transpose(1, 2)
    attended = nn.functional.scaled_dot_product_attention(jagged, 2 * jagged, jagged - 1)
    return [aligned, attended.transpose(1, 2).values()]


def products(device: str) -> list[torch.Tensor]:
    """Products of short floats with a result of long ones."""
    a, b = (torch.linspace(-1, 1, 24).view(2, 3, 4).bfloat16(), torch.linspace(-2, 1, 24).view(2, 4, 3).bfloat16())
    c = torch.linspace(0, 1, 9).view(3, 3).bfloat16()
    if device == "cpu":
        a, b, c = a.float(), b.float(), c.float()
        return [a[0] @ b[0], a[0] @ b[0], a @ b, 2 * c + 3 * (a[0] @ b[0]), torch.stack([c, c]) + a @ b]
    a, b, c = a.to(device), b.to(device), c.to(device)
    single = torch.float32
    sums = torch.addmm(c, a[0], b[0], out_dtype=single, beta=2, alpha=3)
    both = torch.baddbmm(torch.stack([c, c]), a, b, out_dtype=single)
    given = torch.zeros(3, 3, device=device)
    torch.mm(a[0], b[0], out_dtype=single, out=given)
    return [given, torch.mm(a[0], b[0], out_dtype=single), torch.bmm(a, b, out_dtype=single), sums, both]


def sparse(device: str) -> list[torch.Tensor]:
    """Rows of a sparse tensor."""
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]], device=device).to_sparse()
    return [x.index_select(0, torch.tensor([2, 1], device=device)).to_dense()]


def quantized(device: str) -> list[torch.Tensor]:
    """Eight bits, for each tensor and for each row."""
    x = torch.linspace(-1, 1, 32, device=device).view(4, 8)
    whole = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    scales, zeros = torch.full((4,), 0.1, device=device), torch.zeros(4, dtype=torch.long, device=device)
    rows = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    return [whole.dequantize(), whole.int_repr(), whole.relu().dequantize(), rows.dequantize()]


def bags(device: str) -> list[torch.Tensor]:
    """Embeddings of eight bits."""
    weight = torch.ops.quantized.embedding_bag_byte_prepack(torch.linspace(-1, 1, 80).view(10, 8)).to(device)
    indices, offsets = torch.tensor([1, 2, 3], device=device), torch.tensor([0, 2], device=device)
    return [torch.ops.quantized.embedding_bag_byte_rowwise_offsets(weight, indices, offsets)]


def compared(case: Callable[[str], list[torch.Tensor]]) -> None:
    """Tell how far a case on a device is from the same on the host."""
    pairs = zip(case("cpu"), case("cuda"), strict=True)
    tell(far=[(host.double() - there.cpu().double()).abs().max().item() for host, there in pairs])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[1]
    if chosen in ("nested", "encoder", "sequences", "products", "sparse", "quantized", "bags"):
        compared(globals()[chosen])
    else:
        globals()[chosen]()

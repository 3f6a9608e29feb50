"""FSDP2, tensor and sequence parallelism: a small Llama on a mesh of two by two ranks. Argument: eager or compiled."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

VOCABULARY, WIDTH, HEAD, LAYERS, BATCH, LENGTH, STEPS = 128, 64, 16, 2, 2, 32, 3


class Attention(nn.Module):
    """Causal attention over the heads of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the tokens say to each other."""
        q, k, v = (part(hidden).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The gated part of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what each token becomes."""
        return self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


class Layer(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.feed_norm, self.feed = nn.RMSNorm(WIDTH), Feed()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed(self.feed_norm(hidden))


class Decoder(nn.Module):
    """All layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))


def of_layer() -> dict[str, object]:
    """Return how a layer is split; between its parts each rank has a piece of the sequence."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan: dict[str, object] = {name: SequenceParallel() for name in ("attention_norm", "feed_norm")}
    plan |= {"attention": gather, "feed": gather}
    plan |= {name: ColwiseParallel() for name in ("attention.q", "attention.k", "attention.v", "feed.gate", "feed.up")}
    return plan | {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.out", "feed.down")}


def build_model(mesh: DeviceMesh, is_compiled: bool) -> Decoder:
    """Make the model, split each layer over "tp", and shard it over "dp"."""
    model = Decoder().cuda()
    outer = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tp"], outer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], of_layer())
        if is_compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    sharded: Decoder = fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    return sharded


def main(how: str) -> None:
    """Train for a few steps."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    model = build_model(mesh, is_compiled=how == "compiled")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).cuda()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: loss {loss.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

"""Megatron-core: a small GPT, two tensor-parallel ranks by two pipeline stages, with Megatron's own schedule."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

VOCABULARY, LENGTH, BATCH, MICROBATCHES, STEPS = 128, 32, 2, 4, 3


def build_model() -> DistributedDataParallel:
    """Make this rank's part of the model."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
        finalize_model_grads_func=finalize_model_grads,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="LayerNorm"),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    return DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=False), model.cuda())


def batches() -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches without end."""
    shape = (BATCH, LENGTH)
    positions = torch.arange(LENGTH).expand(shape)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    while True:
        tokens = torch.randint(VOCABULARY, shape)
        batch = {"tokens": tokens, "positions": positions, "mask": mask, "labels": tokens.roll(-1, dims=1)}
        yield {name: tensor.cuda() for name, tensor in batch.items()}


def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a microbatch, and what is to be kept of it."""
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def forward_step(data: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple[torch.Tensor, object]:
    """Run one microbatch through this stage."""
    batch = next(data)
    output = model(batch["tokens"], batch["positions"], batch["mask"], labels=batch["labels"])
    return output, partial(loss_of)


def main() -> None:
    """Train for a few steps."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    model_parallel_cuda_manual_seed(1)
    model, data = build_model(), batches()
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, clip_grad=1.0), [model])
    forward_backward = get_forward_backward_func()
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=data,
            model=model,
            num_microbatches=MICROBATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        is_updated, norm, _ = optimizer.step()
        if parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0:
            print(f"step {step}: {len(losses)} losses, gradient norm {norm}, updated: {is_updated}", flush=True)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

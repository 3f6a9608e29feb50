"""DeepSpeed: ZeRO-3, so that parameters, gradients and the optimizer's state are sharded over all ranks."""

import deepspeed
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, LENGTH, STEPS = 128, 32, 3
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


def main() -> None:
    """Train for a few steps."""
    deepspeed.init_distributed("nccl")
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4)
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model = GPT2LMHeadModel(config)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (2, LENGTH)).to(engine.device)
        loss = engine(tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item()}", flush=True)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

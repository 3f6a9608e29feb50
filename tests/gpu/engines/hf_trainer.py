"""Hugging Face's Trainer, unchanged from its wheel, trains a Llama with FSDP2; one line of JSON says how it went.

    torchrun --standalone --nproc-per-node 2 hf_trainer.py --steps 40

The model has random weights, and the tokens are random, both of fixed seeds. So equal settings must give equal losses
(`full_determinism`: else the backward pass of the attention adds in any order).
"""

import argparse
import hashlib
import json
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

WARM = 5  # steps that are not timed


class Tokens(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc,unused-ignore]
    """Random sequences."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        make = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(vocabulary, (count, length), generator=make)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Notes the seconds between the ends of two steps, and losses with the norms of their gradients."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[str] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the time, once the device is done."""
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def on_log(self, *_: object, logs: dict[str, Any], **__: object) -> None:
        """Note what the trainer logs of a step."""
        if "loss" in logs:
            self.losses.append(f"{float(logs['loss']).hex()} {float(logs['grad_norm']).hex()}")


def main() -> None:
    """Train, and print the result of rank 0."""
    read = argparse.ArgumentParser()
    read.add_argument("--steps", type=int, default=40)
    read.add_argument("--hidden", type=int, default=2048)
    read.add_argument("--layers", type=int, default=8)
    read.add_argument("--batches", default="1,8", help="sequences a rank in each step, one training each")
    read.add_argument("--length", type=int, default=512)
    given = read.parse_args()
    found: dict[str, dict[str, list[Any]]] = {}
    for batch in given.batches.split(","):
        torch.manual_seed(0)
        configuration = LlamaConfig(
            vocab_size=4096,
            hidden_size=given.hidden,
            intermediate_size=3 * given.hidden,
            num_hidden_layers=given.layers,
            num_attention_heads=given.hidden // 64,
            num_key_value_heads=given.hidden // 128,
        )
        model = LlamaForCausalLM(configuration)
        watch = Watch()
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=WARM + given.steps,
                per_device_train_batch_size=int(batch),
                bf16=True,
                fsdp=True,
                fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                full_determinism=True,
            )
            data = Tokens(64 * int(batch), given.length, configuration.vocab_size)
            trainer = Trainer(model, arguments, train_dataset=data, callbacks=[watch])
            trainer.train()
        sha = hashlib.sha256(" ".join(watch.losses).encode()).hexdigest()[:16]
        times = [after - before for before, after in zip(watch.ends, watch.ends[1:], strict=False)]
        found[batch] = {"sha": [sha], "seconds": times[WARM - 1 :], "losses": watch.losses[:: max(1, given.steps // 4)]}
    if trainer.is_world_process_zero():
        print("RESULT " + json.dumps({"batches": found, "options": {"tokens": 1}}), flush=True)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()

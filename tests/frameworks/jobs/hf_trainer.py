"""Hugging Face Trainer: a small GPT-2 with random weights on random tokens, with an evaluation and a checkpoint."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, LENGTH = 128, 32


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (count, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train for a few steps."""
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            bf16=True,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=4,
            report_to="none",
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(64), eval_dataset=Tokens(10))
        trainer.train()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()

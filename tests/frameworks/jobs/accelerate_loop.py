"""Accelerate: one's own training loop, with accumulated gradients. The launcher decides how the model is sharded."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 64


def main() -> None:
    """Train for an epoch, and evaluate."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(100, WIDTH), torch.randn(100, 1))
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
    for inputs, wanted in batches:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs).float(), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    outputs = []
    with torch.no_grad():
        for inputs, _ in batches:
            outputs.append(accelerator.gather_for_metrics(model(inputs)))
    accelerator.print(f"{len(batches)} batches on each rank, {len(torch.cat(outputs))} outputs of all ranks")
    accelerator.end_training()


if __name__ == "__main__":
    main()

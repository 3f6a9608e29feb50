"""Ray Train: Ray starts four workers, each with a device of its own, and wraps the model in DDP."""

import tempfile

import ray
import torch
from ray.train import RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

WIDTH, STEPS = 64, 3


def train() -> None:
    """Train for a few steps: what a worker does."""
    model = prepare_model(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = model(torch.randn(8, WIDTH).to(get_device())).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report({"step": step, "loss": loss.item()})


def main() -> None:
    """Start the workers and wait for them."""
    ray.init(include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        scaling, run = ScalingConfig(num_workers=4, use_gpu=True), RunConfig(storage_path=folder)
        print(TorchTrainer(train, scaling_config=scaling, run_config=run).fit())
    ray.shutdown()


if __name__ == "__main__":
    main()

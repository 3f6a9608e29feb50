"""Lightning: a module of its own kind, trained with DDP, with a metric that all ranks reduce."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 64


class Model(lightning.LightningModule):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        inputs, wanted = batch
        loss = nn.functional.mse_loss(self.layers(inputs), wanted)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the loss."""
        inputs, wanted = batch
        self.log("validation", nn.functional.mse_loss(self.layers(inputs), wanted), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train for a few steps."""
    data = DataLoader(TensorDataset(torch.randn(64, WIDTH), torch.randn(64, 1)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=4,
        strategy="ddp",
        max_steps=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), data, data)
    trainer.print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()

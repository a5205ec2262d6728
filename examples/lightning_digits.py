"""Train a plain and a tied CNN on digits with Lightning; a callback measures them after each epoch."""

import logging
import warnings

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ien
from ien.data import embedded_digits

# digits in memory need no workers; Lightning 2.6 uses a name that torch 2.13 deprecates
warnings.filterwarnings("ignore", ".*(does not have many workers|LeafSpec)")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 32, 7, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            nn.MaxPool2d(2),
            nn.Sequential(nn.Conv2d(32, 64, 5), nn.BatchNorm2d(64), nn.ReLU()),
            nn.MaxPool2d(2),
            nn.Sequential(nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer, steps = torch.optim.AdamW(self.parameters()), self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


x, y = embedded_digits()
images, labels = x[4700:], y[4700:]  # a few hundred are enough to measure
for name in ("plain", "tied"):
    lightning.seed_everything(0, verbose=False)
    module = Digits()
    if name == "tied":
        ien.make_equivariant(module.net, "rot4", x[:8])
    callback = ien.callbacks.LightningCallback(
        images, "rot4", ["0", "2", "4"], feature_groups=4, module="net", labels=labels
    )
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=32, shuffle=True))
    for epoch, report in callback.reports.items():
        upright, worst = report.accuracy["identity"], min(report.accuracy.values())
        print(f"{name}, epoch {epoch}: {upright:.1%} upright, {worst:.1%} at worst; {report!r}")

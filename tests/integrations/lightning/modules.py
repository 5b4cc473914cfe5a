"""LightningModules as users write them."""

from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy


class Data(pl.LightningDataModule):
    def __init__(self, folder: Path | None = None, batch_size: int = 8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        features = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        # By the global generator: the same in every session only if that is seeded.
        self.parts = random_split(TensorDataset(features, (features.sum(1) > 0).long()), [42, 18])

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return [DataLoader(self.parts[1], batch_size=8, collate_fn=stacked_backwards)]

    def predict_dataloader(self):
        return DataLoader(self.parts[1], batch_size=8)


def stacked_backwards(samples):
    return torch.stack([features for features, _ in samples[::-1]]), torch.stack([label for _, label in samples[::-1]])


class Classifier(pl.LightningModule):
    """A classifier whose loss and schedule depend on the position in the run."""

    patience = 3

    def __init__(self, hidden: int = 8, lr=0.05, layers=(1, 2)):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Dropout(0.1), nn.ReLU(), nn.Linear(hidden, 2))
        self.train_accuracy, self.val_accuracy = MulticlassAccuracy(2), MulticlassAccuracy(2)

    def forward(self, features):
        return self.body(features)

    def training_step(self, batch, batch_idx):
        features, labels = batch
        logits = self(features)
        weight = 1 + self.current_epoch + self.global_step / self.trainer.estimated_stepping_batches + batch_idx
        loss = weight * nn.functional.cross_entropy(logits, labels)
        self.train_accuracy(logits, labels)
        self.log("train_accuracy", self.train_accuracy)
        self.log_dict({"train_loss": loss})
        assert torch.zeros(1, device=self.device).device == features.device
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        features, labels = batch
        logits = self(features)
        self.val_accuracy(logits, labels)
        self.log("val_accuracy", self.val_accuracy)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels), on_step=True, on_epoch=True)
        self.log("first", features[0, 0], reduce_fx="max")

    def on_validation_epoch_end(self):
        self.log("metric_at_end", self.val_accuracy.compute())

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return {"class": self(batch[0]).argmax(1), "largest": self(batch[0]).amax(1)}

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        by_update = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, self.trainer.estimated_stepping_batches)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [{"scheduler": by_update, "interval": "step"}, by_epoch]

    def on_train_epoch_end(self):
        pass


class Returning(pl.LightningModule):
    """A module with its own data, which logs nothing."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.1)}

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(6, 3)), batch_size=5)

    val_dataloader = test_dataloader = train_dataloader

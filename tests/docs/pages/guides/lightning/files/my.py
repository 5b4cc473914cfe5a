"""A LightningModule that takes its data from its own dataloaders, or from a LightningDataModule."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count):
    return TensorDataset(torch.randn(count, 8), torch.randn(count, 1))


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(samples(256), batch_size=32)

    def val_dataloader(self):
        return DataLoader(samples(64), batch_size=32)


class Lit(pl.LightningModule):
    def __init__(self, lr: float = 1e-3):
        super().__init__()
        self.lr, self.layer = lr, nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return (self.layer(inputs) - targets).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

    def train_dataloader(self):
        return DataLoader(samples(256), batch_size=32)

    def val_dataloader(self):
        return DataLoader(samples(64), batch_size=32)

"""Checkpoints of 8-bit optimizer states have the same size after any number of resumes."""

import json

import pytest
import safetensors
import torch
from torch import nn

from tests.sessions import session

pytest.importorskip("bitsandbytes")


class Wide:
    epochs, effective_batch, learning_rate = 3, 10, 0.01

    def model(self):
        return nn.Sequential(nn.Linear(4, 1024), nn.Tanh(), nn.Linear(1024, 64), nn.Linear(64, 64))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters())

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return {"train": torch.randn(40, 4, generator=torch.Generator().manual_seed(0))}


def optimizer_tables(run):
    newest = max((run / "checkpoints").glob("update-*"))
    with safetensors.safe_open(newest / "optimizer.safetensors", framework="np") as file:
        tables = [name for name in file.keys() if "qmap" in name]  # noqa: SIM118
    manifest = json.loads((newest / "manifest.json").read_text())
    return tables, manifest["files"]["optimizer.safetensors"]


def test_shared_tables_are_saved_once_after_resuming(tmp_path):
    values = {"optimizer_states": "8bit", "micro_batch": 5}
    session(Wide(), tmp_path / "straight", values)
    for loss_count in (6, 9, 0):
        session(Wide(), tmp_path / "stopped", values, stop="limit" if loss_count else "", at=loss_count)
    tables, file = optimizer_tables(tmp_path / "straight")
    assert len(tables) == 2
    assert optimizer_tables(tmp_path / "stopped") == (tables, file)

"""Updates with growing microbatches, in this process."""

import dataclasses

import pytest

from shoestring.base.settings import Settings
from shoestring.runs.check import attempts
from shoestring.training.monitor import host_memory

DECIDING = """
import torch
from torch import nn

class Mine:
    effective_batch = 24
    def model(self): return nn.Linear(256, 2048)
    def batch(self, size): return torch.ones(size, 256)
    def loss(self, model, batch):
        loss = model(batch).topk(3, dim=0).values.square().mean()
        return loss if loss.item() > 0 else -loss
"""


@pytest.fixture
def try_sizes(tmp_path):
    path = tmp_path / "deciding.py"

    def run(sizes, text=DECIDING, seconds=60.0):
        path.write_text(text)
        settings = Settings(micro_batch=sizes[-1], precision="fp32", checkpointing="no")
        request = {
            "reference": str(path),
            "options": {},
            "settings": settings.json(),
            "sizes": sizes,
            "device": "cpu",
            "seconds": seconds,
        }
        stages = []
        attempts.try_sizes(request, stages.append)
        return stages

    return run


def test_sizes_grow_although_the_smallest_fails(try_sizes):
    stages = try_sizes([2, 4, 8, 24])
    assert [(stage["stage"], stage.get("micro_batch")) for stage in stages] == [
        ("error", 2),
        ("size", 4),
        ("disk", None),
        ("size", 8),
        ("size", 24),
    ]
    assert "loss = model(batch).topk" in stages[0]["problems"][0]
    weights = (256 + 1) * 2048 * 4
    assert weights < stages[2]["light"] < 1.05 * weights
    assert stages[2]["full"] - stages[2]["light"] == pytest.approx(2 * weights, rel=0.01)  # the states of AdamW
    assert [stage["stage"] for stage in try_sizes([4, 8, 24], seconds=0.0)] == ["size", "disk"]


def test_no_size_is_tried_that_would_fill_the_host(try_sizes, monkeypatch):
    now = host_memory.host_memory()
    full = dataclasses.replace(now, used_bytes=now.limit_bytes)
    monkeypatch.setattr(host_memory, "host_memory", lambda: full)
    stages = try_sizes([4, 8, 24])
    assert [(stage["stage"], stage.get("micro_batch")) for stage in stages] == [
        ("size", 4),
        ("disk", None),
        ("full", 8),
    ]
    assert "host's memory" in stages[-1]["message"]


STAGED = """
import torch
from torch import nn

class Mine:
    epochs, effective_batch, max_updates = 3, 4, 5
    {declaration}
    def stage(self, update, updates_per_epoch, total_updates):
        assert (update, updates_per_epoch, total_updates) == (0, 2, 5)
        return "a"
    def model(self):
        return nn.ModuleDict(dict(a=nn.Linear(64, 64), b=nn.Linear(64, 64)))
    def batch(self, size): return torch.ones(size, 64)
    def data(self): return torch.ones(8, 64)
    def loss(self, model, batch, stage):
        for name, layer in model.items():
            layer.requires_grad_(name == stage)
        loss = model[stage](batch).square().mean()
        return loss if loss.item() > 0 else -loss
"""


@pytest.mark.parametrize(("declaration", "trained"), [("", 1), ('stages = ("a", "b")', 2)])
def test_every_stage_of_the_loss_is_measured(try_sizes, declaration, trained):
    sizes, disk = try_sizes([4], STAGED.format(declaration=declaration))
    assert (sizes["stage"], disk["stage"]) == ("size", "disk")
    # The states of AdamW exist for the layers that a stage has trained.
    layer = (64 + 1) * 64 * 4
    assert disk["full"] - disk["light"] == pytest.approx(2 * trained * layer, rel=0.01)


PADDED = """
import torch
from torch import nn

class Mine:
    effective_batch = 4
    def model(self): return nn.Embedding(10, 10)
    def batch(self, size): return torch.zeros(size, 6, dtype=torch.long)
    def data(self): return torch.arange(18).remainder(10).view(3, 6)
    def loss(self, model, batch):
        {line}
        mask = batch != 0
        losses = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), reduction="none")
        return (losses * mask.flatten()).sum(), mask.sum().item()
"""


def test_samples_of_the_data_are_tried_where_the_largest_batch_fails(try_sizes):
    stages = try_sizes([2, 4], PADDED.format(line=""))
    assert [(stage["stage"], stage.get("micro_batch")) for stage in stages] == [
        ("error", 2),
        ("error", 4),
        ("data", None),
        ("size", 2),
        ("disk", None),
        ("size", 4),  # of three samples
    ]
    assert "total weight" in stages[1]["message"]
    stages = try_sizes([4], PADDED.format(line="raise KeyError('zeros' if batch.sum() == 0 else 'real')"))
    assert [stage.get("message") for stage in stages] == ["KeyError: 'zeros'", None, "KeyError: 'real'"]

"""A recipe to begin with. It runs as it is, on synthetic data; replace its parts one by one.

Does it fit into a GPU, and how long does it take?          shoestring plan {name}.py --on kaggle-t4
Try a few updates on this machine:                          shoestring check {name}.py
Train; the same command continues after an interruption:    shoestring train {name}.py --run runs/{name}
List its options:                                           shoestring recipes {name}.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn
from torch.utils.data import TensorDataset


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `--set KEY=VALUE` changes. Every recipe also has epochs, effective_batch, seed, subset and others."""

    data: Annotated[Path | None, "a CSV file without a header: 16 numbers and the class, 0 to 3"] = None
    width: Annotated[int, "the width of the network"] = 64


class Template:
    """One sentence about what is trained, which `shoestring recipes {name}.py` prints."""

    epochs, effective_batch = 5, 64  # an update is one optimizer step over effective_batch samples
    best = ("accuracy", "max")  # best/ has the weights of the epoch with the highest accuracy on the validation data

    def __init__(self, options=Options()):
        self.options = options

    # These three methods are enough for a plan. -----------------------------------------------------------------------

    def model(self):
        # On the CPU: Shoestring moves it, and chooses the precision, the microbatch and what else saves memory.
        return nn.Sequential(nn.Linear(16, self.options.width), nn.ReLU(), nn.Linear(self.options.width, 4))

    def batch(self, size):
        # The largest batch of so many samples that can occur. Its values do not matter.
        return torch.zeros(size, 16), torch.zeros(size, dtype=torch.long)

    def loss(self, model, batch):
        # The mean over the samples, or the pair (sum, weight) if samples count differently, as tokens and padding do.
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    # Training needs data. ---------------------------------------------------------------------------------------------

    def data(self):
        # Datasets, not loaders. Random augmentation belongs in __getitem__, where it is the same after an interruption.
        if self.options.data is None:
            inputs = torch.randn(1280, 16)
            labels = inputs[:, :4].argmax(dim=1)
        else:
            rows = torch.tensor([[*map(float, line.split(","))] for line in self.options.data.read_text().splitlines()])
            inputs, labels = rows[:, :16], rows[:, 16].long()
        count = len(inputs) * 4 // 5
        return {
            "train": TensorDataset(inputs[:count], labels[:count]),
            "validation": TensorDataset(inputs[count:], labels[count:]),
        }

    # Everything else is optional. -------------------------------------------------------------------------------------

    def optimizer(self, model):  # by default AdamW with learning_rate = 1e-3
        return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    def schedule(self, update, updates_per_epoch, total_updates):  # the factor on the learning rate; by default 1
        return min((update + 1) / updates_per_epoch, 1 - update / total_updates)

    def evaluate(self, model, batches):  # metrics by name; by default the mean loss
        correct = total = 0
        for inputs, labels in batches:
            correct += int((model(inputs).argmax(dim=1) == labels).sum())
            total += len(labels)
        return {"accuracy": correct / total}

    def predict(self, model, batch):  # for `shoestring predict runs/{name}`; one prediction for each sample
        inputs, _ = batch
        return model(inputs).argmax(dim=1).tolist()

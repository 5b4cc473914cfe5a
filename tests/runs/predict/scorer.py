"""A recipe that predicts whether a scaled number is positive; its scaler comes from the training data."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shoestring.pieces import Input

LIVE = {"samples": 0, "most": 0}
"""The number of samples in memory, now and at most."""


@dataclass(frozen=True, kw_only=True)
class Options:
    data: Path | None = None
    seconds: float = 0.0
    most: int = 0
    """The number of samples that fit into memory; 0: any."""


class Sample:
    """A loaded input, which is counted while it is in memory."""

    def __init__(self, value):
        self.value = value
        LIVE["samples"] += 1
        LIVE["most"] = max(LIVE.values())

    def __del__(self):
        LIVE["samples"] -= 1


class Scorer:
    epochs, effective_batch, learning_rate = 2, 4, 0.1

    def __init__(self, options=None):
        self.options = options or Options()
        self.mean = None

    def model(self):
        return nn.Linear(1, 2)

    def batch(self, size):
        return torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        numbers, labels = batch
        return nn.functional.cross_entropy(model(numbers), labels)

    def data(self):
        numbers = [3.0, 5.0, 7.0, 9.0] * 5 if self.options.data is None else read(self.options.data)
        if self.mean is None:
            self.mean = sum(numbers) / len(numbers)
        rows = [(torch.tensor([number - self.mean]), int(number > 6)) for number in numbers]
        return {"train": rows, "validation": rows[:10]}

    def collate(self, samples):
        if self.options.most and len(samples) > self.options.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if isinstance(samples[0], Sample):
            time.sleep(self.options.seconds)
            samples = [(torch.tensor([sample.value - self.mean]), -1) for sample in samples]
        return torch.utils.data.default_collate(samples)

    def evaluate(self, model, batches):
        return {"loss": float(torch.cat([model(numbers)[:, 0] for numbers, _ in batches]).mean())}

    def save_preprocessing(self, folder):
        (folder / "scaler").mkdir()
        (folder / "scaler" / "mean.json").write_text(json.dumps(self.mean))

    def load_preprocessing(self, folder):
        self.mean = json.loads((folder / "scaler" / "mean.json").read_text())

    def inputs(self, source):
        for value in source if isinstance(source, list) else lines(source):
            if value is None:
                yield Input(error="it is null")
            else:
                yield Input(value=value, load=lambda value=value: Sample(float(value)))

    def predict(self, model, batch):
        numbers, _ = batch
        probabilities = model(numbers).softmax(dim=-1)
        return [
            {
                "prediction": int(row.argmax()),
                "probability": float(row.max()),
                "files": {f"{float(number):g}.txt": b"!"},
            }
            for row, number in zip(probabilities, numbers, strict=True)
        ]

    def targets(self, batch):
        return batch[1]


def read(path):
    return [float(line) for line in path.read_text().split()]


def lines(path):
    with path.open() as file:
        yield from map(json.loads, file)

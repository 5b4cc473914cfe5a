from typing import ClassVar

import pytest
import torch
from torch import nn

from shoestring.engine import autotuning
from shoestring.monitor.events import read
from tests.sessions import session


class Plain:
    effective_batch = 2
    seen: ClassVar = []

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, size):
        return torch.zeros(size, 1)

    def loss(self, model, batch):
        self.seen.append(torch.backends.cudnn.benchmark)
        return model(batch).mean()

    def data(self):
        return [torch.zeros(1)] * 4


class Varied(Plain):
    def length(self, dataset, index):
        return index


@pytest.mark.parametrize(
    ("recipe", "asked", "tries"), [(Plain(), True, True), (Plain(), False, False), (Varied(), True, False)]
)
def test_cudnn_tries_where_it_was_asked_to_and_shapes_stay(tmp_path, recipe, asked, tries):
    recipe.seen.clear()
    session(recipe, tmp_path, {"cudnn_benchmark": asked})
    assert recipe.seen == [tries, tries]
    notes = [event["message"] for event in read(tmp_path / "events.jsonl") if event["event"] == "note"]
    assert (autotuning.NOTE in notes) == (asked and not tries)
    assert torch.backends.cudnn.benchmark is False

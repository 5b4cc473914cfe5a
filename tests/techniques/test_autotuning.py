from typing import ClassVar

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.techniques import autotuning, tf32
from shoestring.training.monitor.events import read
from tests.sessions import session


class Plain:
    effective_batch = 2
    observed_modes: ClassVar = []
    observed_tf32: ClassVar = []

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, size):
        return torch.zeros(size, 1)

    def loss(self, model, batch):
        if torch.is_grad_enabled():  # an update, not the comparison with halves
            self.observed_modes.append(torch.backends.cudnn.benchmark)
            self.observed_tf32.append(torch.backends.cuda.matmul.allow_tf32)
        return model(batch).mean()

    def data(self):
        return [torch.zeros(1)] * 4


class Varied(Plain):
    def length(self, dataset, index):
        return index


@pytest.mark.parametrize(
    ("recipe", "setting", "expected"), [(Plain(), True, True), (Plain(), False, False), (Varied(), True, False)]
)
def test_cudnn_benchmark_needs_the_setting_and_fixed_shapes(tmp_path, recipe, setting, expected):
    recipe.observed_modes.clear()
    recipe.observed_tf32.clear()
    session(recipe, tmp_path, {"cudnn_benchmark": setting, "tf32": expected})
    assert recipe.observed_modes == [expected, expected]
    assert recipe.observed_tf32 == [expected, expected]
    tf32.apply(Settings())
    notes = [event["message"] for event in read(tmp_path / "events.jsonl") if event["event"] == "note"]
    assert (autotuning.NOTE in notes) == (setting and not expected)
    assert torch.backends.cudnn.benchmark is False

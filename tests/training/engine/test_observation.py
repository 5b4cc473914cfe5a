"""Watching an update changes none of its bits and records every attempt."""

import copy
import math

import pytest
import torch
from torch import nn

from shoestring.training.data.seeding import seed_all
from shoestring.training.engine.observation import Observation
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import update


class Tied(nn.Module):
    """A layer whose weight occurs twice, and a parameter of the model itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return {"output": self.second(nn.functional.dropout(self.first(x))) * self.scale, "count": len(x)}


def loss(model, batch):
    return model(batch["x"])["output"].square().sum(), len(batch["x"])


def make(model, x, observation=None):
    seed_all(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if observation:
        observation.begin(2)
    result = update(
        model, optimizer, loss, [({"x": part}, len(part)) for part in x.split(2)],
        samples=len(x), mixed_precision=mixed_precision("fp32", torch.device("cpu")), clip_norm=0.5,
        run=observation.run if observation else None, on_gradients=observation.gradients if observation else None,
    )  # fmt: skip
    return result, [parameter.detach().clone() for parameter in model.parameters()]


def test_watched_update_has_the_same_bits_and_its_gradients_are_before_clipping():
    seed_all(0)
    model, x = Tied(), torch.randn(4, 3)
    result, weights = make(copy.deepcopy(model), x)
    observation = Observation(model, parts=lambda size: torch.tensor([7, 3, 5, 1]).split(size))
    watched_result, watched_weights = make(model, x, observation)
    assert all(map(torch.equal, weights, watched_weights))
    attempt = observation.last
    assert attempt.gradient_norm == pytest.approx(float(result.gradient_norm))
    assert attempt.gradient_norm > 0.5
    assert set(attempt.gradient_norms) == {"(model)", "first", "second"}
    assert [(part.samples, part.weight) for part in attempt.microbatches] == [((7, 3), 2.0), ((5, 1), 2.0)]
    mean = sum(part.loss * part.weight for part in attempt.microbatches) / 4
    assert mean == pytest.approx(float(watched_result.loss))
    assert set(attempt.outputs) == {"first", "second", "(model)"}
    assert attempt.outputs["first"].type == "Linear"
    observation.weights()
    assert attempt.not_finite == []


def test_values_that_are_not_finite_are_named_in_order_with_their_samples():
    model, x = Tied(), torch.ones(4, 3)
    x[2, 1] = math.inf
    observation = Observation(model, parts=lambda size: [[7, 3], [5, 1]][: 4 // size])
    make(model, x, observation)
    observation.weights()
    entries = observation.last.not_finite
    assert [(entry.kind, entry.name) for entry in entries][:4] == [
        ("input", "x"), ("output", "first"), ("output", "second"), ("output", "(model)")
    ]  # fmt: skip
    assert {entry.kind for entry in entries[4:]} == {"loss", "gradient", "weight"}
    assert (entries[0].samples, entries[0].microbatch, entries[0].count, entries[0].total) == ((5,), 1, 1, 6)
    assert {entry.microbatch for entry in entries if entry.kind in ("gradient", "weight")} == {None}
    assert "second.weight" not in {entry.name for entry in entries}  # tied: counted once

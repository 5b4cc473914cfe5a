"""Operators whose output size depends on values are traced with their largest result, and the estimate says so."""

import torch

import shoestring
from tests.mine import Mine


class Selecting(Mine):
    def loss(self, model, batch):
        outputs = model(batch)
        chosen = outputs[batch[:, 0] > 0]
        values = [
            outputs.masked_select(outputs > 0),
            torch.unique(batch, dim=0),
            torch.unique_consecutive(batch),
            torch.where(outputs > 0)[0],
            batch[:, None][batch > 0, 0],
        ]
        count = len(batch)
        assert [len(tensor) for tensor in values] == [count, count, 3 * count, count, 3 * count]
        return chosen.square().mean() + values[0].sum()


def test_estimate_names_the_operators_and_their_largest_size():
    estimate = shoestring.estimate(Selecting(), on="kaggle-t4")
    notes = estimate.json()["notes"]
    assert len(notes) == 6
    assert "upper estimate: the size of `x[mask]` at" in notes[0]
    assert notes[0].endswith("in loss depends on values, and was traced as the largest, 4")
    assert set(notes) <= set(shoestring.plan(Selecting(), on="kaggle-t4").json()["notes"])
    assert "upper estimate" in str(estimate)

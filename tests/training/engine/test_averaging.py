"""The average of the weights: torch's formula, and weights that have their bits again after its use."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shoestring.training.engine.averaging import AveragedWeights


def tied_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3))
    model[2].weight = model[0].weight
    model[3].weight.requires_grad_(False)
    return model


def change(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def test_average_is_that_of_torch():
    model = tied_model()
    own, reference = AveragedWeights(model, 0.9), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(5):
        change(model)
        own.add()
        reference.update_parameters(model)
    expected = dict(reference.module.named_parameters())
    assert own.averages.keys() == {name for name, value in expected.items() if value.requires_grad}
    assert all(torch.equal(average, expected[name]) for name, average in own.averages.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_have_their_bits_again(dtype):
    model = tied_model().to(dtype)
    own = AveragedWeights(model, 0.9)
    for _ in range(3):
        change(model)
        own.add()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    averages = {name: value.clone() for name, value in own.averages.items()}
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    with suppress(InterruptedError), own.in_model():
        state = model.state_dict()
        assert all(torch.equal(state[name], average.to(dtype)) for name, average in averages.items())
        assert not any(torch.equal(state[name], weights[name]) for name in averages)
        assert torch.equal(state["2.weight"], state["0.weight"]) and torch.equal(state["3.weight"], weights["3.weight"])
        raise InterruptedError
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, averages[name]) for name, value in own.averages.items())
    assert {average.dtype for average in averages.values()} == {torch.promote_types(dtype, torch.float32)}
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()]


def test_average_of_another_model_is_refused():
    own = AveragedWeights(tied_model(), 0.9)
    saved = own.pack()
    assert own.problems(saved) == []
    assert own.problems({}) == ["the section 'averaged' is missing", "the section 'averaging' is missing"]
    assert own.problems({**saved, "averaging": {"updates": -1}}) == ["averaging: {'updates': -1} has no updates"]
    assert len(own.problems({**saved, "averaged": {"0.weight": torch.zeros(2)}})) > 1


def test_parameters_that_share_memory_have_their_bits_again():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight.data = model[0].weight.data
    averages = AveragedWeights(model, 0.5)
    averages.add()
    average = model[0].weight.clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    before = model[0].weight.clone()
    with averages.in_model():
        assert torch.equal(model[1].weight, average)
    assert torch.equal(model[0].weight, before)

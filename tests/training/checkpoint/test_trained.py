import torch
from torch import nn

from shoestring.training.checkpoint.trained import frozen_digest, trained_state


class PartlyFrozen(nn.Module):
    """A model with frozen layers, a BatchNorm statistic in them, and a tied weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Sequential(nn.Linear(200, 3), nn.BatchNorm1d(3)).requires_grad_(False)
        self.head = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.head.weight


def test_trained_state_omits_frozen_weights_but_not_statistics():
    assert set(trained_state(PartlyFrozen())) == {
        "frozen.1.running_mean", "frozen.1.running_var", "frozen.1.num_batches_tracked",
        "head.weight", "head.bias", "tied.weight",
    }  # fmt: skip


def test_companions_of_frozen_weights_are_omitted():
    model = PartlyFrozen()
    state_dict = model.state_dict
    model.state_dict = lambda: {**state_dict(), "frozen.0.weight.absmax": torch.ones(2), "head.weights": torch.ones(1)}
    assert "frozen.0.weight.absmax" not in trained_state(model)
    assert "head.weights" in trained_state(model)


def test_fully_trained_model_is_saved_completely():
    model = PartlyFrozen().requires_grad_(True)
    assert trained_state(model).keys() == model.state_dict().keys()
    assert frozen_digest(model) is None


def test_digest_depends_on_frozen_weights_only():
    digest = frozen_digest(PartlyFrozen())
    assert digest == frozen_digest(PartlyFrozen())
    for change in (lambda model: model.frozen[0].weight[0, 0].add_(1), lambda model: model.frozen[1].bias[-1].add_(1)):
        other = PartlyFrozen()
        with torch.no_grad():
            change(other)
        assert frozen_digest(other) != digest
    trained = PartlyFrozen()
    with torch.no_grad():
        trained.head.weight.add_(1)
    assert frozen_digest(trained) == digest


def test_bfloat16_weights_have_a_digest():
    assert frozen_digest(nn.Linear(2, 2).to(torch.bfloat16).requires_grad_(False))

import torch
from torch import nn

from shoestring.checkpoint.trained import frozen_digest, trained_state


class Partly(nn.Module):
    """Half of it frozen, with a statistic in the frozen half and a weight that has two names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Sequential(nn.Linear(200, 3), nn.BatchNorm1d(3)).requires_grad_(False)
        self.head = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.head.weight


def test_frozen_weights_are_left_out_and_statistics_are_not():
    assert set(trained_state(Partly())) == {
        "frozen.1.running_mean", "frozen.1.running_var", "frozen.1.num_batches_tracked",
        "head.weight", "head.bias", "tied.weight",
    }  # fmt: skip


def test_what_belongs_to_a_frozen_weight_is_left_out_with_it():
    model = Partly()
    state = model.state_dict
    model.state_dict = lambda: {**state(), "frozen.0.weight.absmax": torch.ones(2), "head.weights": torch.ones(1)}
    assert "frozen.0.weight.absmax" not in trained_state(model)
    assert "head.weights" in trained_state(model)


def test_nothing_frozen_is_everything_saved():
    model = Partly().requires_grad_(True)
    assert trained_state(model).keys() == model.state_dict().keys()
    assert frozen_digest(model) is None


def test_other_frozen_weights_are_told_from_these():
    digest = frozen_digest(Partly())
    assert digest == frozen_digest(Partly())
    for change in (lambda model: model.frozen[0].weight[0, 0].add_(1), lambda model: model.frozen[1].bias[-1].add_(1)):
        other = Partly()
        with torch.no_grad():
            change(other)
        assert frozen_digest(other) != digest
    trained = Partly()
    with torch.no_grad():
        trained.head.weight.add_(1)
    assert frozen_digest(trained) == digest


def test_types_without_a_numpy_equivalent_have_a_digest():
    assert frozen_digest(nn.Linear(2, 2).to(torch.bfloat16).requires_grad_(False))

"""Facts of a recipe that do not depend on the settings."""

import torch
from torch import nn

from shoestring.planning.trace import facts
from shoestring.recipe.finding import choose, find
from tests.planning.trace.sample_recipes import Linears, Mlp, Tied


def test_parameters_buffers_and_data_are_counted() -> None:
    mlp = facts.read(find(Mlp()))
    parameters = 20 * 64 + 64 + 2 * 64 + 64 * 3 + 3
    assert mlp.parameters_total == mlp.parameters_trainable == parameters
    assert mlp.weight_bytes == 4 * parameters + 2 * 4 * 64 + 8  # running mean and variance, count of batches
    assert mlp.batch_norm
    assert mlp.samples == {"train": 70, "test": 30}


def test_tied_weights_count_once_and_data_is_optional() -> None:
    tied = facts.read(find(Tied()))
    assert tied.parameters_total == 1000 * 64 + 2 * 64
    assert tied.weight_bytes == 4 * tied.parameters_total
    assert tied.samples is None
    assert not tied.batch_norm


class Frozen(Linears):
    def model(self) -> nn.Module:
        model = super().model()
        next(model.parameters()).requires_grad_(False)
        return model


def test_frozen_parameters_are_not_trainable() -> None:
    frozen = facts.read(find(Frozen()))
    assert frozen.parameters_total - frozen.parameters_trainable == 256 * 512
    assert frozen.frozen_bytes == 4 * 256 * 512


def test_scales_of_packed_weights_are_frozen_as_they_are() -> None:
    loaded, _ = choose(Linears(), {"quantization": "nf4", "lora_r": 4, "lora_targets": "0,1"})
    packed = facts.read(loaded)
    assert packed.weight_bytes - packed.frozen_bytes == 4 * packed.parameters_trainable


class Loading(Linears):
    def __init__(self, state: object = None) -> None:
        self.state = state

    def model(self) -> nn.Module:
        model = super().model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.load_state_dict(optimizer.state_dict())  # no weights
        if self.state:
            model.load_state_dict(model.state_dict())
        return model


def test_loading_of_weights_is_observed() -> None:
    assert facts.read(find(Loading(state="saved"))).is_pretrained
    assert not facts.read(find(Loading())).is_pretrained


def test_recipe_declares_pretrained_weights() -> None:
    class Declared(Linears):
        is_pretrained = True

    assert facts.read(find(Declared())).is_pretrained


class AlwaysEvaluating(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


class FixedStatistics(Mlp):
    def model(self) -> nn.Module:
        return nn.Sequential(AlwaysEvaluating(20), nn.Linear(20, 3))


def test_batch_norm_with_fixed_statistics_does_not_count() -> None:
    assert not facts.read(find(FixedStatistics())).batch_norm


def test_subset_has_the_lengths_of_its_samples() -> None:
    class Lengths:
        """A dataset whose lengths only the whole dataset has, not its subsets."""

        def __init__(self) -> None:
            self.lengths = [1] * 50 + [9] * 50

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            return index

    class Lengthy(Mlp):
        def data(self) -> dict[str, object]:
            return {"train": Lengths()}

        def length(self, dataset: Lengths, index: int) -> int:
            return dataset.lengths[index]

        def label(self, dataset: Lengths, index: int) -> int:
            return dataset.lengths[index]

    assert facts.read(find(Lengthy())).lengths == (5.0, 9.0)
    assert facts.read(find(Lengthy()).replace(subset=10)).lengths == (5.0, 9.0)

"""What a recipe is, whatever the settings."""

from torch import nn

from shoestring.recipe.finding import find
from shoestring.trace import facts
from tests.trace.recipes_of_each_kind import Linears, Mlp, Tied


def test_parameters_buffers_and_data_are_counted() -> None:
    found = facts.read(find(Mlp()))
    parameters = 20 * 64 + 64 + 2 * 64 + 64 * 3 + 3
    assert found.parameters_total == found.parameters_trainable == parameters
    assert found.weight_bytes == 4 * parameters + 2 * 4 * 64 + 8  # running mean and variance, batches seen
    assert found.batch_norm
    assert found.samples == {"train": 70, "test": 30}


def test_tied_weights_count_once_and_a_recipe_may_have_no_data() -> None:
    found = facts.read(find(Tied()))
    assert found.parameters_total == 1000 * 64 + 2 * 64
    assert found.weight_bytes == 4 * found.parameters_total
    assert found.samples is None
    assert not found.batch_norm


class Frozen(Linears):
    def model(self) -> nn.Module:
        model = super().model()
        next(model.parameters()).requires_grad_(False)
        return model


def test_frozen_parameters_are_not_trainable() -> None:
    found = facts.read(find(Frozen()))
    assert found.parameters_total - found.parameters_trainable == 256 * 512
    assert found.frozen_bytes == 4 * 256 * 512


class AlwaysEvaluating(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


class FixedStatistics(Mlp):
    def model(self) -> nn.Module:
        return nn.Sequential(AlwaysEvaluating(20), nn.Linear(20, 3))


def test_batch_norm_with_fixed_statistics_does_not_depend_on_the_batch() -> None:
    assert not facts.read(find(FixedStatistics())).batch_norm


def test_the_lengths_of_a_subset_are_those_of_its_own_samples() -> None:
    class Lengths:
        """Only the whole of its data knows lengths."""

        def __init__(self) -> None:
            self.of = [1] * 50 + [9] * 50

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            return index

    class Lengthy(Mlp):
        def data(self) -> dict[str, object]:
            return {"train": Lengths()}

        def length(self, dataset: Lengths, index: int) -> int:
            return dataset.of[index]

        def label(self, dataset: Lengths, index: int) -> int:
            return dataset.of[index]

    assert facts.read(find(Lengthy())).lengths == (5.0, 9.0)
    assert facts.read(find(Lengthy()).replace(subset=10)).lengths == (5.0, 9.0)

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.contract import datasets, loss_at, updates_per_epoch


class WithData:
    def __init__(self, parts):
        self.data = lambda: parts


def test_datasets_need_a_training_part():
    assert list(datasets(WithData([1, 2]))) == ["train"]
    assert list(datasets(WithData({"train": [1], "test": [2]}))) == ["train", "test"]


@pytest.mark.parametrize("parts", [{"validation": [1]}, {"train": [1], "dev": [1]}, {"train": []}, []])
def test_unknown_and_empty_parts_are_refused(parts):
    with pytest.raises(UsageError):
        datasets(WithData(parts))


def test_recipe_without_data_cannot_be_trained():
    with pytest.raises(UsageError, match="it has no data"):
        datasets(object())


def test_single_remaining_sample_joins_the_previous_update():
    assert [updates_per_epoch(samples, 4) for samples in (1, 4, 5, 6, 8, 9)] == [1, 1, 1, 2, 2, 2]
    assert updates_per_epoch(3, 1) == 3


def test_loss_gets_the_stage_of_its_update():
    class Staged:
        def loss(self, model, batch, stage="none"):
            return stage

    assert loss_at(Staged(), 7, 4, 12)(None, None) == "none"
    Staged.stage = lambda self, *position: position
    assert loss_at(Staged(), 7, 4, 12)(None, None) == (7, 4, 12)

"""The folds of a cross-validation: which samples they hold out, and recipes that divide their data themselves."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import choose, find, load
from shoestring.recipe.folds import Fold, all_folds, choose_fold, values_of
from shoestring.recipe.options import own_fields
from tests.mine import Mine

LABELS = ["rare" if index % 20 == 0 else "often" for index in range(103)]
GROUPS = [index * index % 31 for index in range(103)]


def folds_of(count, **parts):
    return [choose_fold(range(103), fold, **parts) for fold in all_folds(count)]


@pytest.mark.parametrize("parts", [{}, {"label": LABELS.__getitem__}, {"group": GROUPS.__getitem__}])
def test_each_sample_is_held_out_once(parts):
    folds = folds_of(5, **parts)
    assert sorted(index for fold in folds for index in fold) == list(range(103))
    assert all(fold == sorted(fold) for fold in folds)
    assert folds == folds_of(5, **parts) and folds[0] != list(range(len(folds[0])))


def test_folds_differ_by_at_most_one_sample_and_one_of_each_label():
    for folds in (folds_of(5), folds_of(5, label=LABELS.__getitem__)):
        assert {len(fold) for fold in folds} == {20, 21}
    counts = [Counter(LABELS[index] for index in fold) for fold in folds]
    assert {count["rare"] for count in counts} == {1, 2}
    without_labels = [sum(LABELS[index] == "rare" for index in fold) for fold in folds_of(5)]
    assert max(without_labels) > 2  # shows that the comparison above can fail


def test_groups_stay_together_and_labels_are_spread():
    folds = folds_of(4, group=GROUPS.__getitem__, label=LABELS.__getitem__)
    by_fold = [{GROUPS[index] for index in fold} for fold in folds]
    assert sum(map(len, by_fold)) == len(set(GROUPS))
    assert max(map(len, folds)) - min(map(len, folds)) <= max(Counter(GROUPS).values())
    assert all(any(LABELS[index] == "rare" for index in fold) for fold in folds)


class Divided(Mine):
    def data(self):
        return {"train": torch.arange(30).float().reshape(10, 3), "validation": torch.ones(4, 3)}

    def unaugmented(self, dataset):
        return -dataset


def test_option_fold_divides_the_training_part():
    parts = load(Divided(), {"fold": "2/5"}).data()
    held_out = [int(-sample[0]) // 3 for sample in parts["validation"]]
    trained = [int(sample[0]) // 3 for sample in parts["train"]]
    assert (len(held_out), sorted(held_out + trained)) == (2, list(range(10)))
    assert parts["validation"].replaces == 4
    other_seed = load(Divided(), {"fold": "2/5", "seed": 7}).data()
    assert other_seed["validation"].indices == parts["validation"].indices
    of_subset = load(Divided(), {"fold": "1/2", "subset": 4}).data()
    assert (len(of_subset["train"]), len(of_subset["validation"])) == (2, 2)
    assert load(Divided(), {"fold": "1/5", "rows": 100}).absent_samples() == {"train": 80, "validation": 20}


@pytest.mark.parametrize("fold", ["0/5", "6/5", "1/1", "2", "1/101", "a/b"])
def test_impossible_folds_are_refused(fold):
    with pytest.raises(UsageError) as error:
        load(Divided(), {"fold": fold})
    assert "must be like 3/5" in error.value.problems[0]


def test_more_folds_than_samples_are_refused():
    with pytest.raises(UsageError, match="the training data has 10 samples"):
        load(Divided(), {"fold": "1/11"}).data()
    with pytest.raises(UsageError, match="1 folds are not possible"):
        all_folds(1)


@dataclass(frozen=True)
class Numbered:
    fold: int = 0
    folds: int = 4


@dataclass(frozen=True)
class Texts:
    fold: str | None = None


class Own(Mine):
    def __init__(self, options=Numbered()):
        self.options = options


def test_recipe_with_an_own_fold_divides_its_data_itself():
    numbered, texts = find(Own()), find(Own(Texts()))
    assert values_of(Fold(3, 5), own_fields(numbered)) == {"fold": 2, "folds": 5}
    assert values_of(Fold(3, 5), own_fields(texts)) == {"fold": "3/5"}
    for loaded, fold in ((numbered, 2), (texts, "3/5")):
        chosen, _ = choose(loaded, {"fold": fold})
        assert chosen.fold is None and chosen.recipe.options.fold == fold and len(chosen.data()["train"]) == 10


def test_attribute_fold_of_a_recipe_is_its_own():
    class Attribute(Mine):
        fold = None

    chosen = load(Attribute(), {"fold": "1/2"})
    assert (chosen.recipe.fold, chosen.fold) == ("1/2", None)
    Attribute.fold = 0
    assert load(Attribute(), {}).recipe.fold == 0
    with pytest.raises(UsageError) as error:
        load(Attribute(), {"fold": "1/2"})
    assert "has a `fold` of its own, 0" in error.value.problems[0]
